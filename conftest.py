"""For those who try pytest: flags of absl's tests are read where it runs them."""

from absl import flags

flags.FLAGS.mark_as_parsed()
