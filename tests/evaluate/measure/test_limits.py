"""The rates of a machine are measured once for each of its cards."""

import json
import subprocess
from pathlib import Path

import pytest

from conf.schema.load import GpuConfig
from evaluate import limits


def test_two_cards_of_one_name_are_measured_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = []

    def measure(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        measured.append(path := Path(words[-1]))
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"bandwidth": 4e12 + len(measured), "products": {}}))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(limits, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(limits.subprocess, "run", measure)
    monkeypatch.setattr(limits, "gpu_names", lambda: ["NVIDIA H200"])
    found = []
    for card in ("0a", "0b", "0a"):
        monkeypatch.setattr(limits, "gpu_cards", lambda card=card: [card])
        rates = limits.rates(GpuConfig())
        assert rates is not None
        found.append(rates.bandwidth - 4e12)
    assert found == [1, 2, 1]
