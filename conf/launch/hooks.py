"""What a command says about its own sweeps. `conf` knows nothing of checkpoints and results."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import QuantlineError
from conf.launch.task import Record

Config = Any
"""The typed options of the command."""


@dataclass(frozen=True)
class Parts:
    """The parts of one job that may run apart, as overrides that are added to the job's own."""

    separate: list[list[str]]
    shared_first: list[str] | None = None
    """A part that the others need and that is done once, before them; None without one."""


class SweepHooks(ABC):
    """Splits, checks and gathers the jobs of a command's sweep."""

    @abstractmethod
    def folder(self, config: Config) -> Path:
        """Where records, logs and shards of the sweep go. All machines must see it."""

    @abstractmethod
    def label(self, config: Config) -> str:
        """What a job is about, for the name of its files."""

    @abstractmethod
    def gpus(self, config: Config) -> int:
        """The GPUs that a job needs, where there are any."""

    @abstractmethod
    def check(self, configs: list[Config]) -> None:
        """Raises for what can be seen to fail before a job is submitted."""

    @abstractmethod
    def is_done(self, config: Config, record: Record) -> bool:
        """Whether what a finished job made is still there."""

    @abstractmethod
    def in_job(self, config: Config, shard: Path) -> Config:
        """The options inside the job's process."""

    @abstractmethod
    def outputs(self, config: Config) -> list[str]:
        """Identifies what a job made, for `is_done`. Called in the job's process."""

    @abstractmethod
    def holding(self, configs: list[Config]) -> AbstractContextManager[None]:
        """Keeps other sweeps from the same output while this one runs."""

    @abstractmethod
    def gather(self, configs: list[Config]) -> None:
        """Brings together what the jobs wrote so far. Doing it twice changes nothing."""

    @abstractmethod
    def finish(self, configs: list[Config]) -> list[QuantlineError]:
        """Called once at the end, after `gather`. Returns what failed."""

    def begins_anew_with(self, config: Config) -> str:
        """The option with which a second call does all jobs again; empty without it."""
        return ""

    def kept(self, configs: list[Config]) -> str:
        """Where the work of jobs that were ended is kept; empty where the jobs alone say it."""
        return ""

    def check_missing(self, configs: list[Config]) -> None:  # noqa: B027 (a command may have none)
        """Further checks, of the jobs that are not done yet."""

    def parts(self, config: Config) -> Parts:
        """The parts that a job is split into; by default the job itself."""
        return Parts([[]])
