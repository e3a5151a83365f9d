"""What an audit consists of: findings, and what they rest on."""

from __future__ import annotations

import itertools
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tff_noise.audit import black_box
from tff_noise.report import blocks
from tff_noise.report import sections

# Characters of a line of text, and of a cell of a table at least.
_LINE, _CELL = 120, 20

Finding = black_box.Finding
Verdict = black_box.Verdict


class Audit(NamedTuple):
  """An audit.

  Attributes:
    title: What was audited.
    findings: What was found.
    evidence: What a reader needs to judge the findings by.
    content: The evidence as JSON has it.
    files: Texts for other programs, by the name of their file.
  """

  title: str
  findings: tuple[Finding, ...]
  evidence: tuple[sections.Built, ...]
  content: Mapping[str, Any]
  files: Mapping[str, str] = {}

  @property
  def failed(self) -> bool:
    """Whether anything was found that should not be; no evidence is no failure, and no pass."""
    return any(finding.verdict is Verdict.FAILED for finding in self.findings)

  @property
  def status(self) -> int:
    """The exit status: 1 if anything failed, 3 if there was no evidence for something, else 0."""
    if self.failed:
      return 1
    return 3 if any(f.verdict is Verdict.NO_EVIDENCE for f in self.findings) else 0

  def sections(self) -> list[sections.Built]:
    """Returns all of it as the sections of a page."""
    rows = [(f.verdict.value, f.name, f.detail) for f in self.findings]
    table = blocks.Table(('verdict', 'test', 'what was seen'), rows)
    return [sections.Built('Findings', (self._headline(), table)), *self.evidence]

  def text(self) -> str:
    """Returns all of it as plain text."""
    lines = [self.title, '=' * len(self.title)]
    for section in self.sections():
      lines += ['', section.title, '-' * len(section.title)]
      for block in section.blocks:
        lines += _text(block)
    return '\n'.join(lines)

  def json(self) -> str:
    """Returns all of it as JSON; numbers that are none are left out."""
    findings = [
        {
            'test': f.name,
            'verdict': f.verdict.value,
            'detail': f.detail,
            **{k: v for k, v in (('value', f.value), ('claim', f.claim)) if math.isfinite(v)},
        }
        for f in self.findings
    ]
    content = {'title': self.title, 'findings': findings, **self.content}
    return json.dumps(content, indent=2, allow_nan=False) + '\n'

  def _headline(self):
    counts = {v: sum(f.verdict is v for f in self.findings) for v in Verdict}
    said = ', '.join(f'{n} {verdict.value}' for verdict, n in counts.items() if n)
    meaning = 'Passed means that no violation was found, which is no proof that there is none.'
    return blocks.Text(f'{said}. {meaning}', 'warning' if self.failed else 'plain')


def about(subject: Mapping[str, str]) -> sections.Built:
  """Returns the section that says what was audited."""
  return sections.Built('What was audited', (blocks.Table((), list(subject.items())),))


def passed(name: str, detail: str) -> Finding:
  """Returns a finding that found nothing wrong."""
  return Finding(name, Verdict.PASSED, detail, math.nan, math.nan)


def failed(name: str, detail: str) -> Finding:
  """Returns a finding of something wrong."""
  return Finding(name, Verdict.FAILED, ' '.join(detail.split()), math.nan, math.nan)


def no_evidence(name: str, detail: str) -> Finding:
  """Returns a finding that could not be made."""
  return Finding(name, Verdict.NO_EVIDENCE, ' '.join(detail.split()), math.nan, math.nan)


def _text(block: blocks.Block) -> Sequence[str]:
  if isinstance(block, blocks.Table):
    return [*_aligned([row for row in (block.header, *block.rows) if any(row)]), '']
  if isinstance(block, blocks.Text):
    return [*_wrapped(block.text, _LINE), '']
  return []


def _wrapped(text, width):
  # A flag that is cut behind its first hyphen cannot be copied.
  return textwrap.wrap(text, width, break_on_hyphens=False)


def _aligned(rows):
  """Lines of a table whose long cells go over several lines."""
  limit = max(_CELL, _LINE // len(rows[0]))
  cells = [
      [_wrapped(c if isinstance(c, str) else c.short, limit) or [''] for c in row]
      for row in rows
  ]
  columns = zip(*cells, strict=True)
  widths = [max(len(line) for cell in column for line in cell) for column in columns]
  return [
      '  '.join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
      for row in cells
      for line in itertools.zip_longest(*row, fillvalue='')
  ]
