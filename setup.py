"""The packages of the wheel; the rest is in pyproject.toml. Bazel reads neither."""

import setuptools

setuptools.setup(
    packages=[*setuptools.find_namespace_packages(include=['tff_noise*']), 'tff_noise.bin'],
    package_dir={'tff_noise.bin': 'bin'},
    package_data={'tff_noise.report': ['*.html']},
)
