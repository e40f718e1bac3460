"""The stand-in server as a process of its own: its request, and the event that it sends."""

from dataclasses import dataclass

from conf.process.program import Program


@dataclass(frozen=True)
class Pace:
    """How the stand-in writes tokens."""

    ttft_ms: float
    tpot_ms: float
    in_steps: bool


@dataclass(frozen=True)
class Listening:
    """The server accepts requests."""

    url: str


PACED_SERVER = Program("evaluate.traffic_check.paced_server", Pace, (Listening,))
