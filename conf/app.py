"""The door of every command: options in, one typed object out, errors as one message.

Nothing heavy is imported before a config is accepted; `main` imports what it needs.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_automatic_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn
from hydra.errors import SearchPathException
from hydra.types import RunMode
from hydra.version import setbase

from conf import sources
from conf.compose import COMPOSING, VERSION_BASE, Command, checked, quiet, register, to_object
from conf.entry import CLOSED_PIPE, answer_flags, drop_unread_output, let_children_find_us
from conf.errors import QuantlineError, bad_input
from conf.explain import explain
from conf.help import help_text
from conf.job import Job, JobFailure, Outcome

INTERRUPTED = 130


def run(command: Command, main: Callable[[Any], object]) -> None:
    """Runs `main` on the typed config of the command line, and exits."""
    arguments = sys.argv[1:]
    try:
        if {"--help", "-h", "--version"} & set(arguments):
            answer_flags(arguments, help_text(command))
        let_children_find_us()
        failures = [outcome.failure for outcome in _run_jobs(command, arguments, main)]
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except COMPOSING as error:
        failures = [JobFailure.of(_as_bad_input(error))]
    except Exception as error:
        failures = [JobFailure.of(error)]
    known = [failure for failure in failures if failure is not None]
    if drop_unread_output() and any(failure.is_closed_pipe for failure in known):
        sys.exit(CLOSED_PIPE)
    sys.exit(max([failure.report() for failure in known], default=0))


def _run_jobs(
    command: Command, arguments: list[str], main: Callable[[Any], object]
) -> list[Outcome]:
    """What came of each job; of a command that only shows its config there is none."""
    register(command)
    words = _words(arguments)
    flags = [argument for argument in arguments if argument not in words]
    sys.argv[1:] = [*flags, *quiet(), *checked(command, words)]
    given = get_args_parser().parse_args()
    # Hydra prints its own errors and exits 1 unless this is set; ours say what is close.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        if given.cfg or given.info or given.shell_completion or given.experimental_rerun:
            hydra.main(str(sources.CONF), command.name, VERSION_BASE)(
                lambda config: main(to_object(config))
            )()
            return []
        return _launch(command, given, Job(main))
    finally:
        del os.environ["HYDRA_FULL_ERROR"]


def _launch(command: Command, given: Namespace, job: Job) -> list[Outcome]:
    """Runs one job, or those of a sweep, as `hydra.main` does, which keeps their outcomes to
    itself."""
    setbase(VERSION_BASE)
    search_path = create_automatic_config_search_path(None, None, str(sources.CONF))
    if given.config_dir is not None:
        folder = Path(given.config_dir).absolute()
        if not folder.is_dir():
            raise SearchPathException(f"Additional config directory '{folder}' not found")
        anchor = SearchPathQuery(provider="schema")
        search_path.prepend(provider="command-line", path=f"file://{folder}", anchor=anchor)
    launcher = Hydra.create_main_hydra2(command.name, search_path)
    name, overrides = given.config_name or command.name, list(given.overrides)
    try:
        mode = launcher.get_mode(name, overrides)
        if given.multirun or mode == RunMode.MULTIRUN:
            overrides += [] if mode == RunMode.MULTIRUN else ["hydra.mode=MULTIRUN"]
            return _outcomes(launcher.multirun(name, job, overrides))
        overrides += [] if mode == RunMode.RUN else ["hydra.mode=RUN"]
        return _outcomes(launcher.run(name, job, overrides))
    finally:
        GlobalHydra.instance().clear()


def _outcomes(returned: Any) -> list[Outcome]:
    """The outcomes in what Hydra returns: of one job, or of a sweep in batches. A sweeper that
    optimizes returns none; it takes each outcome for a number, which raises that job's error."""
    if isinstance(returned, JobReturn):
        outcome = returned.return_value
        return [outcome] if isinstance(outcome, Outcome) else []
    if isinstance(returned, (list, tuple)):
        return [outcome for part in returned for outcome in _outcomes(part)]
    return []


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


def report(error: Exception) -> int:
    """Prints one message for the error and returns the exit code that belongs to it."""
    return JobFailure.of(error).report()
