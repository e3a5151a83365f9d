"""Names that data give: of classes, clients and files."""

import unicodedata


def is_utf8(name: str) -> bool:
  """Whether files and pages can have this text; names of files may have other bytes in them."""
  try:
    name.encode()
  except UnicodeEncodeError:
    return False
  return True


def has_control(name: str) -> bool:
  """Whether a line break or another control character is in it, which tables cannot show."""
  return any(unicodedata.category(character) == 'Cc' for character in name)
