"""The tests of a folder, one target for each file."""

load("@rules_python//python:defs.bzl", "py_library", "py_test")

def py_tests(name, deps = [], size = "medium", sizes = {}, shards = {}, data = {}, more_deps = {}):
    """Makes a test of each *_test.py of the folder, called as its file, and a library of its other modules.

    A test depends on that library, so on all of `deps`, whatever it imports of it: a new test or module
    needs no line. What this costs is cached results: a change of one file reruns the tests of everything
    that depends on its folder. Of 112 tests these are, and in brackets with a target for each module:
    report/plots.py 22 (14), algorithms/clipfl.py 83 (32), clients/loops.py 83 (66).

    The tests' modules are loaded as the programs load theirs, by main.py: it takes two seconds less.

    Args:
      name: The folder's own, for the library.
      deps: The library's. What these depend on need not be named.
      size: That of the tests which `sizes` does not name.
      sizes: Those of others, by the name of the test.
      shards: In how many parts tests run, by name; one, if not named.
      data: Files that tests read, a list by name.
      more_deps: What only these tests need and too much depends on, a list by name.
    """
    py_library(
        name = name,
        srcs = native.glob(["*.py"], exclude = ["*_test.py"]),
        deps = deps,
    )
    tests = [file[:-len(".py")] for file in native.glob(["*_test.py"])]
    for test in sizes.keys() + shards.keys() + data.keys() + more_deps.keys():
        if test not in tests:
            # Or a test that is renamed would lose what is said of it here.
            fail("//%s: there is no %s.py" % (native.package_name(), test))
    for test in tests:
        py_test(
            name = test,
            size = sizes.get(test, size),
            srcs = [test + ".py", "//tests:main.py"],
            main = "//tests:main.py",
            args = ["%s.%s" % (native.package_name().replace("/", "."), test)],
            data = data.get(test, []),
            shard_count = shards.get(test),
            deps = [":" + name, "//tff_noise"] + more_deps.get(test, []),
        )
