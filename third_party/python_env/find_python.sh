#!/bin/bash
# Prints the path of a Python that TensorFlow Federated has wheels for and that can make a virtual
# environment. Asked by bazelw and by the repository rule.

# First a distribution's, which has profile-guided optimisation: building computations takes a sixth less
# time than by one that pyenv compiled. A name on PATH may be a shim without a Python behind it, so each
# candidate is run.
for python in /usr/bin/python3{.11,.10,} python3.11 python3.10 python3; do
  "$python" -c '
import sys
if sys.version_info[:2] not in [(3, 10), (3, 11)]:
  sys.exit(1)
import ensurepip, venv  # Debian keeps ensurepip in the package python3-venv.
print(sys.executable)' 2>/dev/null && exit
done
echo "tff_noise needs Python 3.11 or 3.10 with venv (Debian 12 and Ubuntu 22.04: python3 python3-venv), or uv to \
bring one (pipx install uv); found: $(python3 --version 2>&1)." >&2
exit 2
