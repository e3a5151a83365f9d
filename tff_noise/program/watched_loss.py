"""Whether a method's loss is the one that flags ask for: one of its own would be silently wrong."""

from collections.abc import Callable

from tff_noise import types


def watched(form: types.CrossEntropy) -> tuple[types.CrossEntropy, Callable[[], bool]]:
  """Returns the same form of the loss, which knows whether it was looked at, and whether it was.

  Args:
    form: What a method's loss is to be; it is traced while the method is built.
  """
  looked = []

  class Form(types.CrossEntropy):
    """The same values."""

    @property
    def temperature(self):
      looked.append(True)
      return self[1]

  return Form(*form), lambda: bool(looked)
