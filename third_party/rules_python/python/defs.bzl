"""Stand-in for the part of rules_python this project uses: py_library, py_binary and py_test.

The rules built into Bazel 4 fetch C++ and Java rules from GitHub before the first Python file runs. These
need nothing but bash and the interpreter of `@python_env`.

Differences from the real rules:
  * One import root, the workspace's; `import a.b` is found exactly when a declared source makes it so.
  * No `__init__.py` is invented: a folder without one is a namespace package.
"""

_SOURCES = {
    "srcs": attr.label_list(allow_files = [".py"]),
    "deps": attr.label_list(),
    "data": attr.label_list(allow_files = True),
}

_EXECUTABLE = dict(
    _SOURCES,
    main = attr.label(
        allow_single_file = [".py"],
        doc = "What to run; by default the source called NAME.py, or the only source.",
    ),
    env = attr.string_dict(doc = "Variables of the process, added to those of the caller."),
    # The path of the interpreter. An input, so that a new lock file reruns the tests.
    _python = attr.label(
        default = "@python_env//:python",
        allow_single_file = True,
    ),
    _launcher = attr.label(
        default = "//python:launcher.sh",
        allow_single_file = True,
    ),
)

def _runfiles(ctx, files = []):
    runfiles = ctx.runfiles(
        files = files + ctx.files.srcs,
        transitive_files = depset(ctx.files.data),
    )
    for target in ctx.attr.deps + ctx.attr.data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)
    return runfiles

def _library_impl(ctx):
    return [DefaultInfo(files = depset(ctx.files.srcs), runfiles = _runfiles(ctx))]

def _main(ctx):
    if ctx.file.main:
        return ctx.file.main
    for src in ctx.files.srcs:
        if src.basename == ctx.label.name + ".py" or len(ctx.files.srcs) == 1:
            return src
    fail("%s: which of its %d srcs to run? Set main." % (ctx.label, len(ctx.files.srcs)))

def _quote(text):
    return "'" + text.replace("'", "'\\''") + "'"

def _executable_impl(ctx):
    main, python = _main(ctx), ctx.file._python
    launcher = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.expand_template(
        template = ctx.file._launcher,
        output = launcher,
        is_executable = True,
        substitutions = {
            # "../python_env/python": relative to the workspace's folder in the runfiles.
            "%{workspace}": ctx.workspace_name,
            "%{python}": python.short_path,
            "%{main}": main.short_path,
            "%{env}": "\n".join([
                "export %s=%s" % (name, _quote(value))
                for name, value in ctx.attr.env.items()
            ]),
        },
    )
    return [DefaultInfo(executable = launcher, runfiles = _runfiles(ctx, [main, python]))]

py_library = rule(implementation = _library_impl, attrs = _SOURCES)
py_binary = rule(implementation = _executable_impl, attrs = _EXECUTABLE, executable = True)
py_test = rule(implementation = _executable_impl, attrs = _EXECUTABLE, test = True)
