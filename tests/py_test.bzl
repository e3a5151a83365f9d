"""py_test as used below this folder."""

load("@rules_python//python:defs.bzl", _py_test = "py_test")

def py_test(name, srcs, deps = [], **kwargs):
    """A test that loads its modules as the programs do, which half of its time can go into.

    Args:
      name: As of rules_python's: that of the module of tests.
      srcs: The same.
      deps: The same.
      **kwargs: The same.
    """
    _py_test(
        name = name,
        srcs = srcs + ["//tests:main.py"],
        main = "//tests:main.py",
        args = ["%s.%s" % (native.package_name().replace("/", "."), name)],
        deps = depset(deps + ["//tff_noise:loading"]).to_list(),
        **kwargs
    )
