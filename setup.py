"""The packages of the wheel; the rest is in pyproject.toml. Bazel reads neither."""

import sys
import tempfile

import setuptools

# pip asks what is needed first, and says of that alone that there is no such version.
if not (3, 10) <= sys.version_info[:2] < (3, 12):
  sys.exit(f'tff_noise needs Python 3.10 or 3.11, this is {sys.version.split()[0]}')

setuptools.setup(
    # Not ./build, which keeps modules that are gone, and a second wheel would have them again.
    options={'build': {'build_base': tempfile.mkdtemp()}},
    packages=[*setuptools.find_namespace_packages(include=['tff_noise*']), 'tff_noise.bin'],
    package_dir={'tff_noise.bin': 'bin'},
    package_data={'tff_noise.report': ['*.html']},
)
