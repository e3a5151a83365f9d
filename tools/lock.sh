#!/bin/bash
# Makes requirements.txt and requirements-gpu.txt again:  tools/lock.sh [--upgrade]
# Without --upgrade, versions already in requirements.txt stay where requirements.in allows it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv_lock=third_party/python_env/uv.txt
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT

python=$(third_party/python_env/find_python.sh)
"$python" -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install --no-user --quiet --no-deps --require-hashes -r "$uv_lock"

compile() {
  # The platform is that of TFF's wheel. Local settings (an index, a proxy) must not reach the lock.
  "$tmp/venv/bin/uv" pip compile --quiet --no-config --no-header --no-emit-index-url \
    --python-platform x86_64-manylinux_2_31 --override requirements-overrides.txt "$@"
}

# One lock for both Pythons: hashes cover every wheel of a version, so it is enough that both resolve to
# the same versions.
compile --python-version 3.10 --generate-hashes -o requirements.txt "$@" requirements.in >/dev/null
for version in 3.10 3.11; do
  compile --python-version "$version" --no-annotate -c requirements.txt requirements.in >"$tmp/$version"
done
diff "$tmp/3.10" "$tmp/3.11"
compile --python-version 3.10 --generate-hashes --no-annotate -c requirements.txt \
  -o requirements-gpu.txt requirements-gpu.in >/dev/null
echo "requirements.txt: $(wc -l <"$tmp/3.11") packages, the same for Python 3.10 and 3.11"
