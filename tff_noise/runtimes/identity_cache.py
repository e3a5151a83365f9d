"""A cache whose keys are objects as themselves, not what they are equal to."""

from typing import Any


class IdentityCache:
  """The last so many values, each of some objects in an order.

  Equality would ask too much: a computation's hash is that of all its bytes. The objects are held,
  since an id is one's own alone as long as one lives.
  """

  def __init__(self, size: int):
    self._size = size
    self._held = {}

  def find(self, *objects: Any) -> Any:
    """Returns the value of these objects, None where it is not there."""
    _, value = self._held.get(tuple(map(id, objects)), (None, None))
    return value

  def make_room(self) -> None:
    """Lets the oldest go if there is no place: before the next is made, or both would be there."""
    while len(self._held) >= self._size:
      del self._held[next(iter(self._held))]

  def add(self, value: Any, *objects: Any) -> None:
    """Holds a value that is not None."""
    self.make_room()
    self._held[tuple(map(id, objects))] = objects, value

  def clear(self) -> None:
    """Lets all go."""
    self._held.clear()
