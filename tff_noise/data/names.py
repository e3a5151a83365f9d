"""Names that data give: of classes, clients and files."""


def is_utf8(name: str) -> bool:
  """Whether files and pages can have this text; names of files may have other bytes in them."""
  try:
    name.encode()
  except UnicodeEncodeError:
    return False
  return True
