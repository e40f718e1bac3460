"""Messages between our processes: one dataclass per line, as JSON with its type's name."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from conf.errors import ENVIRONMENT_FAILURE, QuantlineError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LONGEST_MESSAGE = 300
READERS: "dict[type[Any], TypeAdapter[Any]]" = {}


@dataclass(frozen=True)
class Failure:
    """Why the work, or a part of it, failed. Sent as a message, it fails the whole process."""

    message: str
    exit_code: int

    @staticmethod
    def of(error: Exception) -> "Failure":
        """An error that is not ours counts as an environment error."""
        if isinstance(error, QuantlineError):
            return Failure(str(error), error.exit_code)
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return Failure(message[:LONGEST_MESSAGE], ENVIRONMENT_FAILURE)

    @staticmethod
    def from_message(content: dict[str, Any]) -> "Failure":
        return Failure(str(content["message"]), int(content["exit_code"]))

    @property
    def error(self) -> QuantlineError:
        return QuantlineError(self.message, self.exit_code)


def encode(message: Any) -> bytes:
    """A dataclass as one line. NaN stays NaN: a measured value may be one."""
    content = {"type": type(message).__name__, "content": asdict(message)}
    return (json.dumps(content, default=str) + "\n").encode()


def decode(line: str | bytes, kinds: Iterable[type[Any]]) -> Any:
    """The dataclass in a line; its type is one of `kinds`. A type with `from_message` is read
    without pydantic, whose import takes 0.15 s."""
    message = json.loads(line)
    kind = {kind.__name__: kind for kind in kinds}[message["type"]]
    if hasattr(kind, "from_message"):
        return kind.from_message(message["content"])
    return _reader(kind).validate_python(message["content"])


def _reader(kind: type[Any]) -> "TypeAdapter[Any]":
    """The reader of a type, made once: a worker sends hundreds of events."""
    if kind not in READERS:
        from pydantic import TypeAdapter

        READERS[kind] = TypeAdapter(kind)
    return READERS[kind]
