"""The rates of a machine are measured once for each of its cards."""

import json
from pathlib import Path

import pytest

from conf.errors import environment_failure
from conf.schema.load import GpuConfig
from evaluate.measure.rates import known
from evaluate.measure.rates.known import RatesRequest, rates


def test_two_cards_of_one_name_are_measured_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = []

    def measure(_: object, request: RatesRequest) -> None:
        measured.append(path := Path(request.path))
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"bandwidth": 4e12 + len(measured), "products": {}}))

    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    monkeypatch.setattr(known, "call", measure)
    monkeypatch.setattr(known, "gpu_names", lambda: ["NVIDIA H200"])
    found = []
    for card in ("0a", "0b", "0a"):
        monkeypatch.setattr(known, "gpu_cards", lambda card=card: [card])
        measured_rates = rates(GpuConfig())
        assert measured_rates is not None
        found.append(measured_rates.bandwidth - 4e12)
    assert found == [1, 2, 1]


def test_the_datasheet_stands_in_where_measuring_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise environment_failure("the GPU is lost")

    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    monkeypatch.setattr(known, "call", fail)
    stated = rates(GpuConfig(bandwidth_gb_s=2.0, bf16_tflops=3.0), count=2)
    assert stated is not None
    assert (stated.bandwidth, stated.products, stated.source) == (4e9, {"bf16": 6e12}, "datasheet")
    assert rates(GpuConfig()) is None
