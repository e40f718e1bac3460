"""The unit of a trace's times. Files do not state it; a wrong guess is off by a factor of 1,000."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import shown_path
from conf.schema.commands import EvaluateConfig
from conf.schema.traffic import AUTO, MILLISECONDS, REPLAYED, SECONDS, UNITS, TrafficConfig
from conf.terminal import say
from evaluate.measure.traffic.conversation import Conversation

LONGEST_GAP_S = 5.0
SHORTEST_GAP_S = 0.0005
"""Mean gaps outside of these are no load, or more than a server takes: the unit is very likely
another one."""


@dataclass
class FileTimes:
    """The times of a file's requests, in its order: either all have one or none has, and they do
    not go back."""

    known: int = 0
    count: int = 0
    last: float = 0.0
    missing: str = ""
    """Where the first request without one stands."""
    backward: QuantlineError | None = None
    unreadable: dict[int, QuantlineError] = field(default_factory=dict)
    """By the number of the request."""

    def add(self, time: float | None, where: str, fault: QuantlineError | None = None) -> None:
        self.count += 1
        if fault is not None:
            self.unreadable[self.count - 1] = fault
            return
        if time is None:
            self.missing = self.missing or where
            return
        if self.known and time < self.last and self.backward is None:
            self.backward = bad_input(
                f"{where}: its timestamp is before that of the request before it; sort the file "
                "by time"
            )
        self.known, self.last = self.known + 1, time

    @property
    def fault(self) -> QuantlineError | None:
        """Why a replay would have other times than the file."""
        if self.unreadable:
            return next(iter(self.unreadable.values()))
        if self.known and self.missing:
            return bad_input(
                f"{self.missing}: there is no timestamp; {self.known:,} of {self.count:,} requests "
                "have one, and all or none must have one"
            )
        return self.backward


def with_sound_times(
    conversations: list[Conversation], times: FileTimes, path: Path, needs_times: bool
) -> list[Conversation]:
    """The conversations, without times where these cannot be replayed. Raises if they would be."""
    if times.fault is None:
        return conversations
    if needs_times:
        raise times.fault
    say(f"{shown_path(path)}: is read as a file without times. {times.fault}")
    return [replace(each, arrival_s=None) for each in conversations]


def in_seconds(conversations: list[Conversation], unit: str) -> list[Conversation]:
    """The conversations of a file, whose times have this unit, with times in seconds."""
    if unit == SECONDS:
        return conversations
    return [
        each if each.arrival_s is None else replace(each, arrival_s=each.arrival_s / UNITS[unit])
        for each in conversations
    ]


def say_unused(config: EvaluateConfig, conversations: list[Conversation]) -> None:
    """Says that a trace has times that are not replayed. A search cannot replay them."""
    scenarios = config.scenario.values()
    could_replay = any(each.from_traffic and not each.search for each in scenarios)
    has_times = any(each.arrival_s is not None for each in conversations)
    if could_replay and has_times and config.traffic.arrivals != REPLAYED:
        say(
            f"traffic.arrivals={config.traffic.arrivals}: the trace's times are not used; "
            f"traffic.arrivals={REPLAYED} uses them"
        )


def check_replayed(conversations: list[Conversation], config: TrafficConfig) -> None:
    """Says how long a replay takes. Refuses times that very likely have another unit."""
    times = [each.arrival_s for each in conversations[: config.requests]]
    known = [time for time in times if time is not None]
    if len(known) < len(times) or not known:
        raise bad_input(
            f"traffic.arrivals=replayed: the requests of traffic={config.source} have no "
            "timestamps (most formats read the key timestamp)"
        )
    span = known[-1] - known[0]
    if not span:
        return
    gap = span / (len(known) - 1)
    arriving = f"{len(known):,} requests arrive in {span:,.4g} s, {1 / gap:.3g} a second"
    if config.time_unit == AUTO and not SHORTEST_GAP_S <= gap <= LONGEST_GAP_S:
        others = ", ".join(unit for unit in UNITS if unit != MILLISECONDS)
        raise bad_input(
            f"traffic.path={config.path}: {arriving}, if its timestamps have the usual unit; "
            f"write traffic.time_unit={MILLISECONDS} if they are milliseconds, else one of {others}"
        )
    say(f"traffic.arrivals=replayed: {arriving}, before traffic.speed={config.speed:g}")
