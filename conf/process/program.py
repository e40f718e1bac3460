"""A module of ours that others run in a process of its own, and what it is sent and sends."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Request = TypeVar("Request")
Event = TypeVar("Event")


@dataclass(frozen=True)
class Program(Generic[Request, Event]):
    """The contract of a process. The package that does the work declares it, in a module that
    imports nothing heavy; whoever starts the process imports that."""

    module: str
    """What `python -m` is called with."""
    request: type[Request]
    events: tuple[type[Event], ...]
    """Every type that it may send."""
    called: str = ""
    """What messages call it; empty is the module's name."""

    @property
    def name(self) -> str:
        return self.called or self.module
