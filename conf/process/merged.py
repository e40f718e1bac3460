"""The events of several processes at once, in the order in which they arrive."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

Event = TypeVar("Event")


@dataclass(frozen=True)
class Ended:
    """A stream has ended."""

    name: str
    error: Exception | None
    """What it raised; None if nothing."""


def merged(streams: Mapping[str, Iterable[Event]]) -> Iterator[Event | Ended]:
    """The events of all streams, and the end of each. Every stream is read in a thread of its own.
    A caller that stops early has to end the streams: their threads wait for the next event."""
    arrived: SimpleQueue[Event | Ended] = SimpleQueue()

    def read(name: str, stream: Iterable[Event]) -> None:
        error = None
        try:
            for event in stream:
                arrived.put(event)
        except Exception as raised:
            error = raised
        arrived.put(Ended(name, error))

    for name, stream in streams.items():
        threading.Thread(target=read, args=(name, stream), daemon=True).start()
    running = len(streams)
    while running:
        event = arrived.get()
        running -= isinstance(event, Ended)
        yield event
