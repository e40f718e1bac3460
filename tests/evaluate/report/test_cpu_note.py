"""An INT8 checkpoint that is slower on a CPU is explained, and only that."""

import re

import pytest

from evaluate.report.show import cpu_note
from evaluate.report.show.cpu_note import ON_H200, notes
from evaluate.results.rows import Row
from tests.conftest import ROOT
from tests.evaluate.made_rows import speed_row

INT8 = {"CompressedTensorsW8A8Int8": "CPUInt8ScaledMMLinearKernel"}
W4A16 = {"CompressedTensorsWNA16": "CPUWNA16LinearKernel"}


def row(
    checkpoint: str, latency: float, kernels: dict[str, str], measure: str = "base", **changes
) -> Row:
    return speed_row(
        checkpoint=checkpoint,
        measure=measure,
        values={"latency_s": latency},
        environment={"device": changes.get("device", "cpu")},
        kernels=kernels,
        invalid=changes.get("invalid", []),
    )


@pytest.fixture(autouse=True)
def cpu_without_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_note, "cpu_has_int8", lambda: False)
    monkeypatch.setattr(cpu_note, "cpu_name", lambda: "aarch64 0xd0c")


ORIGINAL = row("original", 1.0, {})


def test_the_reason_and_a_gpus_speed_are_said() -> None:
    first, last = notes([ORIGINAL, row("w8", 10.0, INT8)])
    assert first == (
        "w8: 10.0 times slower than the original here, because this CPU (aarch64 0xd0c) has no "
        "INT8 matrix units"
    )
    assert "1.40 to 1.50 times as fast as bf16 on an NVIDIA H200; see docs/results.md" in last


def test_a_cpu_with_int8_units_is_not_blamed_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_note, "cpu_has_int8", lambda: True)
    first, _ = notes([ORIGINAL, row("w8", 2.0, INT8)])
    assert first == "w8: 2.0 times slower than the original here"


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [ORIGINAL],
        [ORIGINAL, row("w8", 1.05, INT8)],
        [ORIGINAL, row("w8", 0.5, INT8)],
        [ORIGINAL, row("w4", 10.0, W4A16)],
        [row("w8", 10.0, INT8)],
        [ORIGINAL, row("w8", 10.0, INT8, measure="interactive")],
        [ORIGINAL, row("original", 4.0, {}), row("w8", 3.0, INT8), row("w8", 9.0, INT8)],
        [ORIGINAL, row("w8", 10.0, INT8, invalid=["a cold cache"])],
        [row(name, s, INT8, device="NVIDIA H200") for name, s in (("original", 1), ("w8", 9))],
    ],
)
def test_nothing_is_said_of_anything_else(rows: list[Row]) -> None:
    assert notes(rows) == []


def test_the_gpus_speed_is_the_readmes() -> None:
    """Whose table is tested against the published rows."""
    lines = [line.split("|") for line in (ROOT / "README.md").read_text().splitlines()]
    header = next(cells for cells in lines if len(cells) > 3 and "`w8a8_smooth_gptq`" in cells[3])
    assert header
    column = [cells[3].strip() for cells in lines if len(cells) > 3 and "`" in cells[1]]
    figures = sorted(found[1] for cell in column if (found := re.match(r"(\d\.\d\d)\b", cell)))
    assert (figures[0], figures[-1]) == ON_H200
