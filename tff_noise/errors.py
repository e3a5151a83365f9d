"""One line of what an exception says, for messages that are one line."""


def first_line(error: Exception) -> str:
  """Returns the first line of what an exception says, '' if that is nothing."""
  return (str(error).splitlines() or [''])[0]


def named_line(error: Exception) -> str:
  """Returns the same after its type, for exceptions of code that this package does not know."""
  return f'{type(error).__name__}: {first_line(error)}'
