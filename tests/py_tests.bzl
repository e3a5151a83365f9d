"""The tests of a folder: a target for each file, and one for its quick files together."""

load("@rules_python//python:defs.bzl", "py_library", "py_test")

def py_tests(
        name,
        deps = [],
        size = "medium",
        sizes = {},
        shards = {},
        data = {},
        more_deps = {},
        together = None):
    """Makes a test of each *_test.py of the folder, called as its file, and a library of its other modules.

    Loading TensorFlow takes as long as a quick file's tests. So with `together` the files that `sizes` and
    `shards` do not name run in one process, the test NAME:together; alone, by their names, they run only
    where they are asked for.

    A test depends on that library, so on all of `deps`, whatever it imports of it: a new test or module
    needs no line. What this costs is cached results: a change of one file reruns the tests of everything
    that depends on its folder.

    The tests' modules are loaded as the programs load theirs, by main.py: it takes two seconds less.

    Args:
      name: The folder's own, for the library.
      deps: The library's. What these depend on need not be named.
      size: That of the tests which `sizes` does not name.
      sizes: Those of others, by the name of the test.
      shards: In how many parts tests run, by name; one, if not named.
        So may "together" be: a test of many minutes that starts last leaves a core without work.
      data: Files that tests read, a list by name.
      more_deps: What only these tests need and too much depends on, a list by name.
      together: The size of the quick files' one test; without it each file runs by itself.
    """
    py_library(
        name = name,
        srcs = native.glob(["*.py"], exclude = ["*_test.py"]),
        deps = deps,
    )
    tests = [file[:-len(".py")] for file in native.glob(["*_test.py"])]
    for test in sizes.keys() + shards.keys() + data.keys() + more_deps.keys():
        if test not in tests + (["together"] if together else []):
            # Or a test that is renamed would lose what is said of it here.
            fail("//%s: there is no %s.py" % (native.package_name(), test))
    package = native.package_name().replace("/", ".")
    quick = [t for t in tests if together and t not in sizes and t not in shards]
    for test in tests:
        py_test(
            name = test,
            size = sizes.get(test, size),
            srcs = [test + ".py", "//tests:main.py"],
            main = "//tests:main.py",
            args = ["%s.%s" % (package, test)],
            data = data.get(test, []),
            shard_count = shards.get(test),
            tags = ["manual"] if test in quick else [],
            deps = [":" + name, "//tff_noise"] + more_deps.get(test, []),
        )
    if quick:
        all_deps = [":" + name, "//tff_noise"]
        all_data = []
        for test in quick:
            all_deps += [d for d in more_deps.get(test, []) if d not in all_deps]
            all_data += [d for d in data.get(test, []) if d not in all_data]
        py_test(
            name = "together",
            size = together,
            srcs = [test + ".py" for test in quick] + ["//tests:main.py"],
            main = "//tests:main.py",
            args = [",".join(["%s.%s" % (package, test) for test in quick])],
            data = all_data,
            shard_count = shards.get("together"),
            deps = all_deps,
        )
