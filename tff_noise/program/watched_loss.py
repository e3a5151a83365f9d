"""Whether a method's loss is the one that flags ask for: one of its own would be silently wrong."""

from collections.abc import Callable

from tff_noise import types


def watched(form: types.CrossEntropy) -> tuple[types.CrossEntropy, Callable[[], bool]]:
  """Returns the same form of the loss, and whether all of it that is not as usual was looked at.

  Args:
    form: What a method's loss is to be; it is traced while the method is built.
  """
  looked = set()
  usual = types.CrossEntropy()
  asked = {n for n in form._fields if getattr(form, n) != getattr(usual, n)}
  if form.temperature == usual.temperature:
    asked -= {'temperature_reading'}  # It is of other temperatures.

  class Form(types.CrossEntropy):
    """The same values."""

    def __getattribute__(self, name):
      looked.add(name)
      return super().__getattribute__(name)

  return Form(*form), lambda: asked <= looked
