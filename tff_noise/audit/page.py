"""An audit as files: a page to hand in, JSON for programs, text for terminals."""

import os

from tff_noise import types
from tff_noise.audit import finding
from tff_noise.program import run_directory
from tff_noise.report import html


def write(audit: finding.Audit, folder: str) -> str:
  """Writes audit.html, audit.json, audit.txt and the files that the audit brings.

  Args:
    audit: What to write.
    folder: Where; made if needed.

  Returns:
    The path of the page.

  Raises:
    types.UsageError: If it cannot be written.
  """
  path = os.path.join(folder, 'audit.html')
  try:
    os.makedirs(folder, exist_ok=True)
    run_directory.write_text(os.path.join(folder, 'audit.json'), audit.json())
    run_directory.write_text(os.path.join(folder, 'audit.txt'), audit.text() + '\n')
    for name, text in audit.files.items():
      run_directory.write_text(os.path.join(folder, name), text)
    run_directory.write_text(path, html.render(audit.title, audit.sections()))
  except OSError as error:
    raise types.UsageError(f'{folder} cannot be written to ({error.strerror})') from error
  return path
