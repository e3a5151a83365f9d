"""py_test as used below this folder."""

load("@rules_python//python:defs.bzl", _py_test = "py_test")

def py_test(name, srcs, deps = [], **kwargs):
    """A test whose modules are loaded as the programs load theirs: it takes two seconds less.

    Args:
      name: That of its module, without ".py".
      srcs: As of rules_python's py_test.
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
