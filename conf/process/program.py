"""A module of ours that runs in its own process, with the types of its request and events."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Request = TypeVar("Request")
Event = TypeVar("Event")


@dataclass(frozen=True)
class Program(Generic[Request, Event]):
    """The interface of a process. The package that does the work declares it in a module that
    imports nothing heavy, for the package that starts the process."""

    module: str
    """The argument of `python -m`."""
    request: type[Request]
    events: tuple[type[Event], ...]
    """Every type that it may send."""
    called: str = ""
    """Its name in messages; empty is the module's name."""

    @property
    def name(self) -> str:
        return self.called or self.module
