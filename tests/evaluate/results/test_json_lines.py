"""Results files packed with gzip are read like others, and nothing is added to them."""

import gzip
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from evaluate.results.json_lines import lines
from evaluate.results.lock import only_writer

TEXT = b'{"a":1}\n\n{"b":2}\n{"c":3}'


def test_a_packed_file_has_the_lines_of_the_plain_one(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_bytes(TEXT)
    packed.write_bytes(gzip.compress(TEXT))
    assert list(lines(packed)) == list(lines(plain)) != []


@pytest.mark.parametrize(
    "content",
    [gzip.compress(TEXT * 99)[:40], TEXT, gzip.compress(TEXT)[:-4], b"\x1f\x8b\x08\0" + b"x" * 60],
    ids=["cut", "not packed", "without its end", "damaged"],
)
def test_a_packed_file_that_is_not_whole_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(QuantlineError, match=r"a\.jsonl\.gz: is no whole gzip file"):
        list(lines(path))


def test_nothing_is_added_to_a_packed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with pytest.raises(QuantlineError, match="packed with gzip"), only_writer(path):
        pass
    assert not list(tmp_path.iterdir())
