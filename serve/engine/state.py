"""The state of a server: files in a folder that its starter and its middleware both see."""

from collections.abc import Mapping
from dataclasses import dataclass

STATE = "QUANTLINE_SERVER_STATE"
"""The variable that names the folder."""
READY, DRAINING, ABORTING = "ready", "draining", "aborting"


@dataclass(frozen=True)
class ReadyAnswer:
    """The answer of /ready. Numbers are None where another program answers without them."""

    ready: bool = False
    draining: bool = False
    running: int | None = None
    """Requests that are running."""
    aborted: int | None = None
    """Requests that were running when aborting began."""
    server: str = ""
    """The name of the state folder; empty without one."""

    @staticmethod
    def of(content: Mapping[str, object]) -> "ReadyAnswer":
        """Reads the JSON object of an answer."""
        running, aborted = content.get("running"), content.get("aborted")
        return ReadyAnswer(
            ready=bool(content.get("ready")),
            draining=bool(content.get("draining")),
            running=running if isinstance(running, int) else None,
            aborted=aborted if isinstance(aborted, int) else None,
            server=str(content.get("server", "")),
        )
