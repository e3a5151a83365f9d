"""What a run may release, as uplink.json declares it, for tests."""

from typing import Any

from tff_noise.privacy import protection

REPORTS = protection.LabelReports(10, '0.81', num_labels=1000)
NOISE = protection.NoisySum(2.0, 0.5, cohort=10, population=100)


def declare(**protections: protection.Protection | None) -> list[dict[str, Any]]:
  """Returns the content of an uplink.json with values that are protected so."""
  return [
      {
          'name': name,
          'disclosure': 'DP, secure sum' if name == 'labels' else 'sum',
          'protection': protection.to_json(shield),
      }
      for name, shield in protections.items()
  ]


NAMES = ('labels', 'update', 'size')
DECLARED = declare(labels=REPORTS, update=None, size=protection.Counts())
