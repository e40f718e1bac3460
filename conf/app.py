"""The door of every command: options in, one typed object out, errors as one message.

Nothing heavy is imported before a config is accepted; `main` imports what it needs.
"""

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from conf import sources
from conf.compose import COMPOSING, VERSION_BASE, Command, checked, quiet, register, to_object
from conf.entry import (
    CLOSED_PIPE,
    answer_flags,
    as_called,
    drop_unread_output,
    let_children_find_us,
)
from conf.errors import WORLD_FAULT, QuantlineError, bad_input, environment_reason
from conf.explain import explain
from conf.help import help_text

DEBUG = "QUANTLINE_DEBUG"
INTERNAL_ERROR = 1
INTERRUPTED = 130


@dataclass(frozen=True)
class Failure:
    """A job that failed, and which one it was where several ran."""

    job: str
    error: Exception


def run(command: Command, main: Callable[[Any], None]) -> None:
    """Runs `main` on the typed config of the command line, and exits."""
    arguments = sys.argv[1:]
    try:
        if {"--help", "-h", "--version"} & set(arguments):
            answer_flags(arguments, help_text(command))
        let_children_find_us()
        failures = _run_jobs(command, arguments, main)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except COMPOSING as error:
        failures = [Failure("", _as_bad_input(error))]
    except Exception as error:
        failures = [Failure("", error)]
    if drop_unread_output() and any(isinstance(f.error, BrokenPipeError) for f in failures):
        sys.exit(CLOSED_PIPE)
    sys.exit(max([report(failure.error, failure.job) for failure in failures], default=0))


def _run_jobs(command: Command, arguments: list[str], main: Callable[[Any], None]) -> list[Failure]:
    register(command)
    words = _words(arguments)
    flags = [argument for argument in arguments if argument not in words]
    sys.argv[1:] = [*flags, *quiet(), *checked(command, words)]
    failures: list[Failure] = []

    def job(config: DictConfig) -> None:
        """Notes a failure instead of raising it, so that the other jobs of a sweep run."""
        settings = HydraConfig.get()
        several = settings.mode == RunMode.MULTIRUN
        name = " ".join(settings.overrides.task) if several else ""
        try:
            main(to_object(config))
        except Exception as error:
            failures.append(Failure(name, error))

    # Hydra prints its own errors and exits 1 unless this is set; ours say what is close.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        hydra.main(str(sources.CONF), command.name, VERSION_BASE)(job)()
    finally:
        del os.environ["HYDRA_FULL_ERROR"]
    return failures


def _words(arguments: list[str]) -> list[str]:
    """The overrides among the arguments; a flag that Hydra does not know is bad input."""
    found, rest = get_args_parser().parse_known_args(arguments)
    strange = [word for word in rest if word.startswith("-")]
    if strange:
        raise bad_input(f"{strange[0]}: options are written NAME=VALUE; --help shows them")
    return [*found.overrides, *rest]  # those behind a flag, too


def _as_bad_input(error: Exception) -> QuantlineError:
    message = bad_input(explain(error))
    message.__cause__ = error
    return message


def report(error: Exception, job: str = "") -> int:
    """Prints one message for the error and returns the exit code that belongs to it."""
    debugging = os.environ.get(DEBUG) == "1"
    if debugging:
        traceback.print_exception(error)
    message, code = _message_and_code(error)
    if code == INTERNAL_ERROR and not debugging:
        message += f" ({DEBUG}=1 shows where)"
    print(as_called(f"error: {f'{job}: ' if job else ''}{message}"), file=sys.stderr)
    return code


def _message_and_code(error: Exception) -> tuple[str, int]:
    if isinstance(error, QuantlineError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        return str(error), WORLD_FAULT
    reason = environment_reason(error)  # of a library that has its own error for a full disk
    if reason:
        return reason, WORLD_FAULT
    return f"{type(error).__name__}: {error}", INTERNAL_ERROR
