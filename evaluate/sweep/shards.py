"""Merges the shards of a sweep's jobs into its results file.

Each job adds rows to a shard of its own, so that no lock is needed across machines. Merging copies
the lines that the results file does not have. Doing it twice changes nothing.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from conf.errors import bad_input
from evaluate.results.json_lines import content, lines
from evaluate.results.results_file import append_lines, row_of


@dataclass(frozen=True)
class Merged:
    """What a merge did."""

    rows: int
    """Rows that were added."""
    shards: int
    ignored: list[str]
    """Lines that are no row, as a crash leaves them: file, line and fault. Their runs are measured
    again."""


def sweep_folder(results: Path) -> Path:
    """The folder of a results file's shards, job records and logs."""
    results = results.expanduser()
    if results.is_dir() or not results.name:
        raise bad_input(f"results={results}: is a folder; give the name of a file in it")
    return results.with_name(f"{results.name}.d")


def merge(results: Path) -> Merged:
    """Adds the rows of all shards to the results file. The caller holds its lock."""
    results = results.expanduser()
    shards = sorted(sweep_folder(results).glob("*.jsonl"))
    known = {line_identity(line) for _, line in lines(results)} if shards else set()
    added, ignored = 0, list[str]()
    for shard in shards:
        if not shard.is_file():  # a pipe would be waited for
            ignored.append(f"{shard}: is no file")
            continue
        new: list[bytes] = []
        for number, line in lines(shard):
            fault = "is not finished" if not line.endswith(b"\n") else _fault(line)
            if fault:
                ignored.append(f"{shard}:{number}: {fault}")
            elif line_identity(line) not in known:
                known.add(line_identity(line))
                new.append(line)
        if new:
            append_lines(results, b"".join(new))
        added += len(new)
    return Merged(added, len(shards), ignored)


def line_identity(line: bytes) -> str:
    """Identifies a row by its line, which a merge copies as it is."""
    return hashlib.sha256(line.strip()).hexdigest()[:16]


def row_identities(results: Path) -> list[str]:
    """The identities of all rows in a file."""
    return [line_identity(line) for _, line in lines(results.expanduser()) if not _fault(line)]


def _fault(line: bytes) -> str:
    try:
        row_of(content(line))
    except ValueError as error:
        return str(error)
    return ""
