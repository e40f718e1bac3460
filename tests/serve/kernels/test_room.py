"""Further layouts of the weights are kept where the GPU has room for them."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from serve.kernels.room import keeps_second_layouts
from serve.kernels.settings import Settings, current_settings

GIB = 2**30
CUDA = torch.device("cuda")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An engine that has loaded 8 GiB of weights; its config can be changed."""
    import vllm.config

    cache = SimpleNamespace(gpu_memory_utilization=0.9, kv_cache_memory_bytes=None)
    entry = {"quantline": Settings().entry}
    config = SimpleNamespace(additional_config=entry, cache_config=cache, free=70)
    monkeypatch.setattr(vllm.config, "get_current_vllm_config_or_none", lambda: config)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 8 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (config.free * GIB, 80 * GIB))
    return config


@pytest.mark.parametrize(
    ("family", "utilization", "free", "cache", "keeps"),
    [
        ("weight_only", 0.9, 70, None, True),  # 24 of 64 GiB
        ("weight_only", 0.5, 70, None, False),  # 24 of 32
        ("weight_only", 0.9, 40, None, False),  # 24 of 40, where others use the rest
        ("w4afp8", 0.9, 70, None, True),  # 32 of 64
        ("sparse", 0.5, 70, None, True),  # 15 of 32
        ("weight_only", 0.01, 40, 12, True),  # side by side: the cache has its size
        ("weight_only", 0.01, 30, 12, False),
    ],
)
def test_copies_leave_enough_for_the_cache(
    engine: Any, family: str, utilization: float, free: int, cache: int | None, keeps: bool
) -> None:
    engine.cache_config.gpu_memory_utilization = utilization
    engine.cache_config.kv_cache_memory_bytes = cache and cache * GIB
    engine.free = free
    assert keeps_second_layouts(family, CUDA) is keeps


def test_it_is_decided_once_and_said(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine.free = 10
    with caplog.at_level(logging.INFO, "vllm.quantline"):
        assert not keeps_second_layouts("weight_only", CUDA)
        engine.free = 70  # the first layer's own weights were freed
        assert not keeps_second_layouts("weight_only", CUDA)
    assert len(caplog.records) == 1
    assert "copies of up to 24.0 GiB" in caplog.text
    assert current_settings() == Settings(second_layout=False)


@pytest.mark.parametrize("chosen", [True, False])
def test_what_the_user_says_counts(engine: Any, chosen: bool) -> None:
    engine.additional_config["quantline"]["second_layout"] = chosen
    engine.free = 1 if chosen else 70
    assert keeps_second_layouts("weight_only", CUDA) is chosen


def test_layers_without_copies_decide_nothing(engine: Any) -> None:
    engine.free = 1
    assert keeps_second_layouts(None, CUDA)
    assert current_settings() == Settings()
