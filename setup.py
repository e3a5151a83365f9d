"""The packages of the wheel; the rest is in pyproject.toml. Bazel reads neither."""

import tempfile

import setuptools

setuptools.setup(
    # Not ./build, which keeps modules that are gone, and a second wheel would have them again.
    options={'build': {'build_base': tempfile.mkdtemp()}},
    packages=[*setuptools.find_namespace_packages(include=['tff_noise*']), 'tff_noise.bin'],
    package_dir={'tff_noise.bin': 'bin'},
    package_data={'tff_noise.report': ['*.html']},
)
