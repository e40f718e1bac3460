"""A record of a traffic file."""

from dataclasses import dataclass

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import JsonObject


@dataclass(frozen=True)
class Record:
    """A record of a file, and where it stands there."""

    where: str
    content: JsonObject
    fault: QuantlineError | None = None
    """Why it cannot be read."""
    is_row: bool = False
    """Whether it is a row of a table, all of whose values are texts."""


def decoded(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise bad_input(f"{where}: is not UTF-8 (byte {error.start})") from error
