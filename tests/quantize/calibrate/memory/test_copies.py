"""Weights go over page-locked memory in parts, and arrive whole."""

import pytest
import torch

from quantize.calibrate.memory import copies
from quantize.calibrate.memory.copies import Staging, chunks, is_staged


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "STAGED_AT_ONCE", 1000)
    monkeypatch.setattr(copies, "LEAST_STAGED", 100)


@pytest.mark.parametrize("shape", [(50,), (500,), (7, 333), (1, 1)])
def test_parts_cover_every_byte_once(shape: tuple[int, ...]) -> None:
    source, target = torch.randn(shape).bfloat16(), torch.zeros(shape).bfloat16()
    for there, here in chunks(target, source):
        assert len(here) <= 1000
        there += here
    assert torch.equal(target, source)


def test_only_large_and_plain_tensors_go_over_a_buffer() -> None:
    large = torch.zeros(20, 20)
    assert is_staged(large, large)
    assert not is_staged(large.t()[:10], large[:, :10].t())
    assert not is_staged(large[0, :5], large[0, :5])
    assert not is_staged(large, large.bfloat16())


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(50,), (500,), (7, 333), (40, 1000)])
def test_there_and_back(shape: tuple[int, ...]) -> None:
    stream = torch.cuda.Stream()
    staging = Staging(stream)
    source = torch.randn(shape).bfloat16()
    loaded, back = torch.empty_like(source, device="cuda"), torch.empty_like(source)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            staging.to_device(loaded, source)
            staging.to_host(back, loaded)
    stream.synchronize()
    assert torch.equal(loaded.cpu(), source)
    assert torch.equal(back, source)
