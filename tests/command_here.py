"""Runs commands and programs in the test's own process, as `python -m` runs them in one of theirs.

Starting a process and importing our packages takes longer than most commands. What a command
changes in its process is set back afterwards: arguments, folder, variables, warnings, logging,
signal handlers, and Hydra's state.
"""

import importlib
import importlib.util
import logging
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from conf.errors import QuantlineError
from conf.process.messages import Failure, decode, encode
from conf.process.program import Program

Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGPIPE)


def run_here(
    arguments: tuple[str, ...],
    folder: Path,
    variables: dict[str, str],
    capture: pytest.CaptureFixture[str],
) -> Result:
    """Runs `python -m ARGUMENTS` in the folder, with these variables set."""
    capture.readouterr()
    with _state_restored():
        os.chdir(folder)
        os.environ.update(variables)
        sys.argv, sys.orig_argv = list(arguments), [sys.executable, "-m", *arguments]
        code = _exit_code(arguments[0])
    output, errors = capture.readouterr()
    return Result([*arguments], code, output, errors)


def call_here(program: Program[Any, Any], request: object, shows_output: bool = False) -> list[Any]:
    """`conf.process.running.call` without a process; messages are sent and read as between two."""
    spec = importlib.util.find_spec(program.module)
    assert spec is not None
    is_package = spec.submodule_search_locations is not None
    module = importlib.import_module(program.module + (".__main__" if is_package else ""))
    events = []
    try:
        module.work(
            decode(encode(request), [program.request]),
            lambda event: events.append(decode(encode(event), program.events)),
        )
    except QuantlineError as error:
        raise decode(encode(Failure.of(error)), [Failure]).error from error
    return events


def _exit_code(module: str) -> int:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
            return 1
        return ending.code or 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _state_restored() -> Iterator[None]:
    folder, variables = Path.cwd(), dict(os.environ)
    arguments, own_arguments = sys.argv, sys.orig_argv
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    root = logging.getLogger()
    log_handlers, log_level, log_disabled = root.handlers[:], root.level, root.manager.disable
    hydra_config = HydraConfig.instance().cfg
    try:
        with _warnings_as_at_start():
            yield
    finally:
        _end_loguru_output()
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = hydra_config
        root.handlers[:], root.manager.disable = log_handlers, log_disabled
        root.setLevel(log_level)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.argv, sys.orig_argv = arguments, own_arguments
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(folder)


def _end_loguru_output() -> None:
    """Removes what a command lets loguru write to: its streams end with the test."""
    if "loguru" in sys.modules:
        sys.modules["loguru"].logger.remove()


@contextmanager
def _warnings_as_at_start() -> Iterator[None]:
    """Shows the warnings that a process shows, on standard error: pytest keeps them to itself."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: object = None,
        line: str | None = None,
    ) -> None:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print(text, end="", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning):
            warnings.simplefilter("ignore", category)
        for category in (ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        # The tests have imported the module that is run now.
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
        warnings.showwarning = show
        yield
