"""A repository that holds the virtual environment of the locked requirements."""

# Downloading TensorFlow takes this long on a slow line.
_TIMEOUT = 3600

# What lies on the user's path is no part of it: pip would not install what it finds there.
_ALONE = {"PYTHONPATH": ""}

def _say(ctx, text):
    # Not report_progress: Bazel 4 shows it on a terminal only, and this is a minute of silence.
    ctx.execute(["echo", text], quiet = False)

def _run(ctx, progress, command, environment = {}):
    _say(ctx, "python_env: " + progress)
    result = ctx.execute(command, environment = dict(_ALONE, **environment), timeout = _TIMEOUT)
    if result.return_code:
        # Said, not failed with: Bazel repeats the message of a failure four times.
        _say(ctx, result.stdout + result.stderr)
        fail("python_env: %s failed, see above" % progress)
    return result.stdout

# How packages are reached, by pip's names and uv's. Not its further indexes: uv would prefer them.
_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "proxy": "ALL_PROXY",
    "cert": "SSL_CERT_FILE",
}

def _pip_settings(ctx, pip):
    """What pip is configured with and uv does not read, as uv's environment; what that has already stays."""

    # Not `config get`, which overlooks a file named by PIP_CONFIG_FILE. Lines are "global.index-url='URL'".
    settings = {}
    for line in ctx.execute(pip + ["config", "list"], environment = _ALONE).stdout.splitlines():
        name, _, value = line.partition("=")
        settings[name] = value.strip("'").replace("\\n", " ").strip()
    environment = {}
    for name, variable in _SETTINGS.items():
        for section in ["global", "install", ":env:"]:  # pip prefers the last.
            value = settings.get(section + "." + name)
            if value and variable not in ctx.os.environ:
                environment[variable] = value
    return environment

def _python_env_impl(ctx):
    # Bazel runs this function again when one of these files changes.
    requirements, uv_lock = ctx.path(ctx.attr.requirements), ctx.path(ctx.attr._uv_lock)
    find_python = ctx.path(ctx.attr._find_python)
    python = ctx.path("venv/bin/python")

    found = ctx.execute([find_python])
    environment = {
        # Trust what the system trusts: company proxies sign with certificates of their own.
        "UV_SYSTEM_CERTS": "1",
    }
    if found.return_code == 0:
        base = found.stdout.strip()
        _run(ctx, "making an environment with " + base, [base, "-m", "venv", "venv"])
        pip = [python, "-m", "pip", "--disable-pip-version-check"]

        # uv, because it downloads side by side: pip needs minutes for what it does in seconds.
        _run(ctx, "installing uv", pip + ["install", "--no-user", "--no-deps", "--require-hashes", "-r", uv_lock])
        uv = ctx.path("venv/bin/uv")

        environment.update(_pip_settings(ctx, pip))
    else:
        uv = ctx.which("uv")
        if not uv:
            fail(found.stderr.strip())
        _run(ctx, "making an environment with uv", [uv, "venv", "--python", "3.11", "venv"])

    _run(ctx, "installing TensorFlow Federated and what it needs (about 700 MB, once)", [
        uv,
        "pip",
        "install",
        "--python",
        python,
        "--no-deps",
        "--require-hashes",
        # jax is a source distribution: what builds it is locked as well.
        "--build-constraints",
        requirements,
        # Sandboxed tests cannot write byte code here and would compile TensorFlow anew each time.
        "--compile-bytecode",
        "-r",
        requirements,
    ], environment)

    # First line: the interpreter, for the launcher of py_binary and py_test. The rest makes the file
    # differ when the environment does, so that tests run again. The environment itself is no input: its
    # 70000 files would be linked into every sandbox.
    version = ctx.execute([python, "--version"]).stdout
    packages = _run(ctx, "listing the packages", [uv, "pip", "freeze", "--python", python])
    ctx.file("python", "%s\n%s%s" % (python, version, packages), executable = False)
    ctx.file("BUILD", 'exports_files(["python"])\n', executable = False)

python_env = repository_rule(
    implementation = _python_env_impl,
    attrs = {
        "requirements": attr.label(
            mandatory = True,
            allow_single_file = True,
            doc = "The lock file: every package with its hashes.",
        ),
        "_find_python": attr.label(default = "//third_party/python_env:find_python.sh"),
        "_uv_lock": attr.label(default = "//third_party/python_env:uv.txt"),
    },
)
