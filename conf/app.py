"""Entry point of every command: parses options into one typed object, reports errors.

Nothing heavy is imported before a config is accepted; `main` imports what it needs.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

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
from conf.compose import (
    COMPOSE_ERRORS,
    VERSION_BASE,
    Command,
    checked_overrides,
    folder_of_runs,
    quiet_overrides,
    register,
    to_object,
)
from conf.entry import (
    CLOSED_PIPE,
    answer_flags,
    as_called,
    drop_unread_output,
    set_child_import_path,
    show,
)
from conf.errors import QuantlineError, bad_input
from conf.escaping import escaped
from conf.explain import check_key, explain
from conf.files.outputs import check_cache
from conf.help import help_text
from conf.job import Job, JobFailure, Outcome
from conf.launch import plugin
from conf.shell import completion, listing
from conf.signals import INTERRUPTION, Terminated

INTERRUPTED = 130


def run(command: Command, main: Callable[[Any], object]) -> None:
    """Runs `main` on the typed config of the command line, and exits."""
    arguments = sys.argv[1:]
    try:
        if _answers_flag(command, arguments):
            sys.exit(0)
        set_child_import_path()
        outcomes = _run_jobs(command, arguments, main)
        failures = [failure for outcome in outcomes for failure in outcome.failures]
    except KeyboardInterrupt as interrupted:
        _exit_interrupted(interrupted)
    except Terminated as ended:
        print(ended, file=sys.stderr)
        sys.exit(ended.exit_code)
    except COMPOSE_ERRORS as error:
        failures = [JobFailure.of(_as_bad_input(error))]
    except Exception as error:
        failures = [JobFailure.of(error)]
    _exit_after(failures)


def run_plain(help_text: str, main: Callable[[list[str]], object]) -> None:
    """Runs `main` on the words of the command line, for a command without options, and exits."""
    arguments = sys.argv[1:]
    answer_flags(arguments, help_text)
    failures = []
    try:
        main(arguments)
    except KeyboardInterrupt as interrupted:
        _exit_interrupted(interrupted)
    except Exception as error:
        failures = [JobFailure.of(error)]
    _exit_after(failures)


def _exit_interrupted(interrupted: KeyboardInterrupt) -> NoReturn:
    """Prints what the command says about its interruption, if it says anything."""
    message = str(interrupted) or INTERRUPTION
    print(f"\n{escaped(as_called(message))}", file=sys.stderr)
    sys.exit(INTERRUPTED)


def _exit_after(failures: list[JobFailure]) -> NoReturn:
    """Reports the failures. It is no failure that nobody reads the output any more."""
    if drop_unread_output() and any(failure.is_closed_pipe for failure in failures):
        sys.exit(CLOSED_PIPE)
    sys.exit(max([failure.report() for failure in failures], default=0))


def _answers_flag(command: Command, arguments: list[str]) -> bool:
    """Answers a flag for which nothing is run. Returns whether there is one."""
    if {"--help", "-h", "--version"} & set(arguments):
        answer_flags(arguments, help_text(command))
    if listing.FLAG in arguments:
        show(listing.listing(command, listing.groups_after_flag(arguments)))
        return True
    if set(completion.FLAGS) & set(arguments):
        show(completion.answer(arguments, command))
        return True
    return False


def _run_jobs(
    command: Command, arguments: list[str], main: Callable[[Any], object]
) -> list[Outcome]:
    """Returns the outcome of each job; none for a command that only shows its config."""
    register(command)
    overrides = _overrides(arguments)
    flags = [argument for argument in arguments if argument not in overrides]
    sys.argv[1:] = [*flags, *quiet_overrides(), *checked_overrides(command, overrides)]
    parsed = get_args_parser().parse_args()
    _check_flags(parsed, command)
    # Hydra prints its own errors and exits 1 unless this is set; ours suggest close names.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        if parsed.cfg or parsed.info or parsed.experimental_rerun:
            hydra.main(str(sources.CONF), command.name, VERSION_BASE)(
                lambda config: main(to_object(config))
            )()
            return []
        return _launch(command, parsed, Job(main, command))
    finally:
        del os.environ["HYDRA_FULL_ERROR"]


def _check_flags(parsed: Namespace, command: Command) -> None:
    """Refuses flags of Hydra that would have no effect here: the command would run without."""
    if parsed.hydra_help:
        raise bad_input("--hydra-help: is not answered here; --help shows the options")
    if parsed.config_path:
        folders = sources.TEAM_FOLDERS
        raise bad_input(f"--config-path: has no effect; {folders} names folders of config files")
    if not parsed.cfg and (parsed.package or parsed.resolve):
        flag = "--package" if parsed.package else "--resolve"
        raise bad_input(f"{flag}: works only with --cfg")
    if parsed.package and not parsed.package.startswith(("_", "hydra")):
        check_key(parsed.package, command.schema)


def _launch(command: Command, parsed: Namespace, job: Job) -> list[Outcome]:
    """Runs one job, or those of a sweep, and returns their outcomes. `hydra.main` does the
    same but returns nothing."""
    if not folder_of_runs().is_dir():
        check_cache()  # Hydra makes the folder
    setbase(VERSION_BASE)
    search_path = create_automatic_config_search_path(None, None, str(sources.CONF))
    if parsed.config_dir is not None:
        folder = Path(parsed.config_dir).absolute()
        if not folder.is_dir():
            raise SearchPathException(f"Additional config directory '{folder}' not found")
        anchor = SearchPathQuery(provider="schema")
        search_path.prepend(provider="command-line", path=f"file://{folder}", anchor=anchor)
    launcher = Hydra.create_main_hydra2(command.name, search_path)
    name, overrides = parsed.config_name or command.name, list(parsed.overrides)
    if command.sweep is not None:
        plugin.register()
        overrides += plugin.chosen(overrides, parsed.config_dir is not None)
    try:
        mode = launcher.get_mode(name, overrides)
        if parsed.multirun or mode == RunMode.MULTIRUN:
            overrides += [] if mode == RunMode.MULTIRUN else ["hydra.mode=MULTIRUN"]
            return _outcomes(launcher.multirun(name, job, overrides))
        overrides += [] if mode == RunMode.RUN else ["hydra.mode=RUN"]
        return _outcomes(launcher.run(name, job, overrides))
    finally:
        GlobalHydra.instance().clear()


def _outcomes(returned: Any) -> list[Outcome]:
    """The outcomes in Hydra's return value: of one job, or of a sweep in batches. A sweeper that
    optimizes returns none: it converts each outcome to a number, which raises the job's error."""
    if isinstance(returned, JobReturn):
        outcome = returned.return_value
        return [outcome] if isinstance(outcome, Outcome) else []
    if isinstance(returned, (list, tuple)):
        return [outcome for batch in returned for outcome in _outcomes(batch)]
    return []


def _overrides(arguments: list[str]) -> list[str]:
    """The overrides among the arguments; a flag that Hydra does not know is bad input."""
    parsed, rest = get_args_parser().parse_known_args(arguments)
    unknown_flags = [argument for argument in rest if argument.startswith("-")]
    if unknown_flags:
        raise bad_input(f"{unknown_flags[0]}: options are written NAME=VALUE; --help shows them")
    return [*parsed.overrides, *rest]  # those after a flag, too


def _as_bad_input(error: Exception) -> QuantlineError:
    user_error = bad_input(explain(error))
    user_error.__cause__ = error
    return user_error


def report(error: Exception) -> int:
    """Prints one message for the error and returns its exit code."""
    return JobFailure.of(error).report()
