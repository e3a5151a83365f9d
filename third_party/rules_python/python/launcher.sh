#!/bin/bash
# Becomes the Python program %{main}: `exec`, so that signals and the exit status are the program's own.

# The runfiles lie beside this script (`bazel run`, bazel-bin/...), or around it (`bazel test`, a program
# that is data of another one). A link to this script is as good as the script.
self=$0
[[ $self == /* ]] || self=$PWD/$self
until [[ -d $self.runfiles || $self == *.runfiles/* ]]; do
  target=$(readlink "$self") || { echo "$0: no runfiles found" >&2; exit 1; }
  [[ $target == /* ]] || target=${self%/*}/$target
  self=$target
done
if [[ -d $self.runfiles ]]; then root=$self.runfiles; else root=${self%.runfiles/*}.runfiles; fi
root=$root/%{workspace}

# Only what BUILD files declare can be imported. Our own byte code is not kept: it would land beside the
# links to the sources (that of the environment is made when it is installed).
export PYTHONPATH=$root PYTHONDONTWRITEBYTECODE=1
%{env}

# Not `python FILE`: Python resolves links and would put the source's real folder, full of undeclared
# files, first on sys.path. `-c` puts the current folder there, which goes for the same reason.
exec "$(head -n 1 "$root/%{python}")" -s -c 'import runpy, sys
sys.path[:] = filter(None, sys.path)
runpy.run_path(sys.argv.pop(1), run_name="__main__")' "$root/%{main}" "$@"
