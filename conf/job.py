"""One job of a command, as a Hydra launcher runs it, here or in another process.

Launchers such as joblib, submitit and Ray pickle the job and its return value. So a failure is part
of the return value and holds nothing but text.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, SupportsFloat

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from conf.compose import Command, to_object
from conf.entry import as_called
from conf.errors import INTERNAL_ERROR, QuantlineError, bad_input, message_and_code
from conf.escaping import escaped
from conf.launch.options import NONE
from conf.unused.rule import UnusedOptions, check_unused, unused_options

DEBUG = "QUANTLINE_DEBUG"


@dataclass(frozen=True)
class JobFailure:
    """Why a job failed."""

    message: str
    exit_code: int
    traceback: str
    is_closed_pipe: bool
    """Whether the reader of its output has gone."""
    job: str = ""
    """The overrides of the job, where several ran."""

    @staticmethod
    def of(error: Exception, job: str = "") -> "JobFailure":
        message, code = message_and_code(error)
        stack = "".join(traceback.format_exception(error))
        return JobFailure(message, code, stack, isinstance(error, BrokenPipeError), job)

    def report(self) -> int:
        """Prints one message and returns its exit code."""
        debugging = os.environ.get(DEBUG) == "1"
        if debugging:
            print(self.traceback, end="", file=sys.stderr)
        hint = f" ({DEBUG}=1 shows where)" if self.exit_code == INTERNAL_ERROR else ""
        prefix = f"{self.job}: " if self.job else ""
        line = f"error: {prefix}{self.message}{'' if debugging else hint}"
        print(escaped(as_called(line)), file=sys.stderr)
        return self.exit_code


@dataclass(frozen=True)
class Outcome:
    """The result of a job: its return value, or its failure."""

    value: object = None
    failure: JobFailure | None = None
    more_failures: tuple[JobFailure, ...] = ()
    """Of a job whose parts ran apart."""

    @property
    def failures(self) -> list[JobFailure]:
        return [*([self.failure] if self.failure else []), *self.more_failures]

    def __float__(self) -> float:
        """The job's value as a number, for sweepers that optimize."""
        if self.failure is not None:
            raise QuantlineError(self.failure.message, self.failure.exit_code)
        if not isinstance(self.value, SupportsFloat):
            raise TypeError("the command returns no number to optimize")
        return float(self.value)


@dataclass(frozen=True)
class Job:
    """Runs a command's `main` on the typed object of a composed config."""

    main: Callable[[Any], object]
    command: Command | None = None

    @property
    def is_spread(self) -> bool:
        """Whether its jobs may run on a launcher."""
        return self.command is not None and self.command.sweep is not None

    def unused(self, options: Any, overrides: Iterable[str]) -> list[UnusedOptions]:
        """The given options that have no effect."""
        rules = self.command.unused if self.command is not None else ()
        return unused_options(rules, options, overrides)

    def __call__(self, config: DictConfig) -> Outcome:
        """Returns a failure instead of raising it, so that the other jobs of a sweep run."""
        settings = HydraConfig.get()
        is_multirun = settings.mode == RunMode.MULTIRUN
        name = " ".join(settings.overrides.task) if is_multirun else ""
        try:
            options = to_object(config)
            if self.is_spread and options.launcher.kind != NONE and not is_multirun:
                kind = options.launcher.kind
                raise bad_input(f"launcher={kind}: works only for a sweep; add -m")
            if not is_multirun:  # the launcher has looked at all jobs of a sweep together
                check_unused(self.unused(options, settings.overrides.task))
            return Outcome(self.main(options))
        except Exception as error:
            return Outcome(failure=JobFailure.of(error, name))
