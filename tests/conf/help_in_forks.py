"""Answers `--help` of modules, each in a fork of one process that has imported nothing heavy.

Called as `python -m tests.conf.help_in_forks MODULE ...`. Prints a line of JSON for each module:
its exit code, what it printed, and the modules that its process has imported.
"""

import json
import os
import runpy
import sys
import tempfile
import traceback

import conf.app  # noqa: F401 - what almost every command imports first


def answer(module: str) -> tuple[int, str]:
    """The exit code of `python -m MODULE --help`, and what it printed."""
    with tempfile.TemporaryFile("w+") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        sys.argv = [module, "--help"]
        code: object = 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ending:
            code = 1 if isinstance(ending.code, str) else ending.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        output.seek(0)
        return int(str(code)), output.read()


def main() -> None:
    answers = os.dup(1)
    for module in sys.argv[1:]:
        child = os.fork()
        if not child:
            code, printed = answer(module)
            found = {"module": module, "code": code, "printed": printed, "imports": [*sys.modules]}
            with os.fdopen(answers, "w") as pipe:
                print(json.dumps(found), file=pipe)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
