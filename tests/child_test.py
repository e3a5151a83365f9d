"""Tests of how a program with children is ended."""

import os
import signal
import subprocess
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from tff_noise import child


class TerminableTest(parameterized.TestCase):

  @parameterized.parameters(
      (signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)
  )
  def test_what_is_lost_is_raised_once_more(self, number, expected):
    before = [signal.getsignal(n) for n in (number, signal.SIGALRM)]
    lost = []
    with mock.patch.object(child, '_UNHEARD_SECONDS', 0.05):
      with self.assertRaises(expected) as caught, child.terminable():
        try:
          os.kill(os.getpid(), number)
        except expected as error:  # As Python does while it collects garbage.
          lost.append(error)
        signal.pause()  # The process works on, and gets no other signal.
    self.assertLen(lost, 1)
    if number == signal.SIGTERM:
      self.assertEqual(caught.exception.code, 128 + number)
    self.assertEqual(signal.getitimer(signal.ITIMER_REAL), (0, 0))
    self.assertEqual([signal.getsignal(n) for n in (number, signal.SIGALRM)], before)

  def test_nothing_is_raised_after_the_block(self):
    with self.assertRaises(KeyboardInterrupt), child.terminable():
      os.kill(os.getpid(), signal.SIGINT)
      signal.pause()
    self.assertEqual(signal.getitimer(signal.ITIMER_REAL), (0, 0))


class StopTest(absltest.TestCase):

  def test_all_are_asked_before_any_is_waited_for(self):
    order = []

    class Process:

      def __init__(self, name):
        self._name = name

      def terminate(self):
        order.append(f'ask {self._name}')

      def kill(self):
        order.append(f'kill {self._name}')

      def wait(self, seconds=None):
        if seconds is not None:
          raise subprocess.TimeoutExpired('', seconds)

    child.stop(Process('a'), Process('b'))
    self.assertEqual(order, ['ask a', 'ask b', 'kill a', 'kill b'])


if __name__ == '__main__':
  absltest.main()
