"""A program of ours for tests: it does what its request says."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass

from conf.errors import gate_failed
from conf.process.inside import Send, run_program, wait_for_turn
from conf.process.messages import Failure
from conf.process.program import Program


@dataclass(frozen=True)
class Order:
    """What to do."""

    action: str
    sizes: dict[str, float] | None = None


@dataclass(frozen=True)
class Ready:
    """It waits for its turn."""

    process: int
    child: int = 0


@dataclass(frozen=True)
class Done:
    """What came of it."""

    action: str
    sizes: dict[str, float]
    failure: Failure | None = None


Event = Ready | Done
EXAMPLE: Program[Order, Event] = Program(
    "tests.conf.process.example_program", Order, (Ready, Done), called="the example"
)


def work(order: Order, send: Send[Event]) -> None:
    """An example for tests."""
    print("some words of a library", flush=True)
    if order.action == "wait":
        send(Ready(os.getpid()))
        wait_for_turn()
    elif order.action == "many":
        for number in range(50):
            send(Ready(number))
    elif order.action == "sleep":
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        forked = os.fork() or time.sleep(600) or 0
        send(Ready(sleeper.pid, forked))
        time.sleep(600)
    elif order.action == "refuse":
        raise gate_failed("it is not good enough")
    elif order.action == "crash":
        raise KeyError("no such thing")
    elif order.action == "die":
        os.kill(os.getpid(), 9)
    elif order.action == "fork" and not os.fork():
        time.sleep(600)  # holds no pipe: our end is the end
    send(Done(order.action, order.sizes or {}, Failure.of(ValueError("a part"))))


if __name__ == "__main__":
    run_program(EXAMPLE, work, str(work.__doc__))
