"""Tests of keys that are objects as themselves."""

from absl.testing import absltest

from tff_noise.runtimes import identity_cache


class IdentityCacheTest(absltest.TestCase):

  def test_equal_objects_and_other_orders_are_others(self):
    cache, one, same, two = identity_cache.IdentityCache(3), [1], [1], [2]
    cache.add('one, two', one, two)
    self.assertEqual(cache.find(one, two), 'one, two')
    for objects in ((same, two), (two, one), (one,), (one, two, two), ()):
      self.assertIsNone(cache.find(*objects))

  def test_the_oldest_goes_and_makes_room_before_the_next(self):
    cache, objects = identity_cache.IdentityCache(2), [[], [], []]
    for number, thing in enumerate(objects[:2]):
      cache.make_room()
      cache.add(number, thing)
    self.assertEqual([cache.find(thing) for thing in objects], [0, 1, None])
    cache.make_room()
    self.assertEqual([cache.find(thing) for thing in objects], [None, 1, None])
    cache.add(2, objects[2])
    self.assertEqual([cache.find(thing) for thing in objects], [None, 1, 2])
    cache.clear()
    self.assertIsNone(cache.find(objects[2]))

  def test_what_is_kept_lives(self):
    cache = identity_cache.IdentityCache(100)
    for number in range(100):
      cache.add(number, [number])  # Nobody else holds it, or its id would be the next one's.
    self.assertLen({id(o) for objects, _ in cache._held.values() for o in objects}, 100)


if __name__ == '__main__':
  absltest.main()
