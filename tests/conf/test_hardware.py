"""What a machine is found to have."""

from pathlib import Path

import pytest

from conf import hardware
from conf.schema.load import GpuConfig


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags : fpu avx512f avx512_bf16", True),
        ("flags : fpu avx2 avx512f", False),
        ("Features : fp asimd bf16", True),
        ("Features : fp asimd", False),
    ],
)
def test_bf16_is_read_from_the_cpus_flags(
    monkeypatch: pytest.MonkeyPatch, line: str, expected: bool
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: f"processor : 0\n{line}\n")
    assert hardware.cpu_has_bf16.__wrapped__() is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags : fpu avx512f avx512_vnni", True),
        ("flags : fpu avx2 avx512f", False),
        ("Features : fp asimd i8mm", True),
        ("Features : fp asimd asimddp", False),
    ],
)
def test_int8_is_read_from_the_cpus_flags(
    monkeypatch: pytest.MonkeyPatch, line: str, expected: bool
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: f"processor : 0\n{line}\n")
    assert hardware.cpu_has_int8.__wrapped__() is expected


def test_a_known_gpu_comes_with_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "gpu_names", lambda: ["NVIDIA H200"])
    found = hardware.resolve_gpu(GpuConfig())
    assert found.compute_capability == 9.0
    assert found.bandwidth_gb_s == 4800


def test_an_unknown_gpu_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "gpu_names", lambda: ["NVIDIA X1"])
    assert hardware.resolve_gpu(GpuConfig()) == GpuConfig(name="NVIDIA X1")


def test_no_gpu_is_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "gpu_names", list)
    assert hardware.resolve_gpu(GpuConfig()).name == "cpu"


def test_two_cards_of_one_name_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is replaced: there is no GPU here."""
    import pynvml

    monkeypatch.setattr(hardware, "gpu_handles", lambda: ["one", "other"])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: f"GPU-{handle}")
    one, other = hardware.gpu_cards()
    assert one != other
    assert hardware.gpu_cards() == [one, other]

    def refuse(_: object) -> str:
        raise pynvml.NVMLError(3)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", refuse)
    assert hardware.gpu_cards() == []
