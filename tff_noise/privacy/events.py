"""What a unit is exposed to as events of dp_accounting, for accountants other than ours.

An event is written as an object: its `class`, a name in dp_accounting, and its attributes, of which
some are events again. Neighbours differ in one unit that is replaced, REPLACE_ONE there.

* Accountants of dp_accounting 0.4.3 take a Gaussian event's noise multiplier as noise over the
  sensitivity, whatever the neighbours. Replacing a client moves a sum by 2 S, so multipliers are
  half of those that runs are given, which are over S.
* 0.4.3 has no event for randomised response; later versions call it RandomizedResponseDpEvent, with
  the probability K b of a uniform report. It is written so, and is an UnsupportedDpEvent to a
  version that does not know it, which every accountant refuses. Independent reports are written one
  by one: versions that know the event ignore how often a SelfComposedDpEvent repeats it.
* A Poisson sample is written with half of the multiplier as well; accountants of 0.4.3 take it for
  neighbours of which one has a unit more, and refuse it for these.
* What nothing protects is a NonPrivateDpEvent, and so is what releases share that have no bound
  together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dp_accounting

from tff_noise.privacy import exposure as exposure_lib
from tff_noise.privacy import mechanism as mechanism_lib
from tff_noise.privacy import protection as protection_lib

_CLASS = 'class'


def to_json(exposure: exposure_lib.Exposure) -> Mapping[str, Any]:
  """Returns the event that is all of an exposure, as JSON has it; `from_json` reads it."""
  events = []
  for protection, times in exposure.made:
    if protection is None:
      events.append(_repeated(_event('NonPrivateDpEvent'), times))
    elif isinstance(protection, protection_lib.NoisySum):
      events.append(_SUMS.get(exposure_lib.kind(protection), _unknown)(protection, times))
  events += [_reports(m) for m, count in exposure.reports.items() for _ in range(count)]
  if exposure.flaw and all(protection is not None for protection, _ in exposure.made):
    # Each has a bound, and all together have none.
    events.append(_event('NonPrivateDpEvent'))
  return _event('ComposedDpEvent', events=events)


def from_json(content: Any) -> Any:
  """Returns the dp_accounting event that `to_json` wrote."""
  if isinstance(content, list):
    return [from_json(item) for item in content]
  if not isinstance(content, dict):
    return content
  kind = getattr(dp_accounting, content[_CLASS], None)
  if kind is None:
    return dp_accounting.UnsupportedDpEvent()
  return kind(**{name: from_json(value) for name, value in content.items() if name != _CLASS})


def _event(name, **attributes):
  return {_CLASS: name, **attributes}


def _repeated(event, times):
  return _event('SelfComposedDpEvent', event=event, count=times)


def _reports(mechanism: mechanism_lib.RandomizedResponse):
  return _event(
      'RandomizedResponseDpEvent',
      noise_parameter=mechanism.num_classes * mechanism.other_probability,
      num_buckets=mechanism.num_classes,
  )


def _noise(protection):
  # Over 2 S, by which replacing a client moves a sum.
  return _event('GaussianDpEvent', noise_multiplier=protection.noise_multiplier / 2)


def _gaussian(protection, times):
  event = _noise(protection)
  if protection.cohort < protection.population:
    event = _event(
        'SampledWithoutReplacementDpEvent',
        source_dataset_size=protection.population,
        sample_size=protection.cohort,
        event=event,
    )
  return _repeated(event, times)


def _poisson(protection, times):
  event = _noise(protection)
  sampled = _event('PoissonSampledDpEvent', sampling_probability=protection.share, event=event)
  return _repeated(sampled, times)


def _turns(protection, times):
  event = _noise(protection)
  return _repeated(event, protection_lib.full_rounds(protection, times))


def _unknown(protection, times):
  del protection, times  # Unused.
  return _event('UnsupportedDpEvent')


# By `exposure.kind`, what a noisy sum is that was released so many times. The discrete Gaussian
# costs no more than the Gaussian, but for what its samples are off by.
_SUMS = {
    (protection_lib.GAUSSIAN, protection_lib.FIXED): _gaussian,
    (protection_lib.DISCRETE_GAUSSIAN, protection_lib.FIXED): _gaussian,
    (protection_lib.GAUSSIAN, protection_lib.POISSON): _poisson,
    (protection_lib.GAUSSIAN, protection_lib.CYCLIC): _turns,
    (protection_lib.DISCRETE_GAUSSIAN, protection_lib.CYCLIC): _turns,
    (protection_lib.TREE, protection_lib.CYCLIC): _turns,
}
