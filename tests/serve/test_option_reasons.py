"""The kernels of a server: the requested ones, else those of the measurement."""

from pathlib import Path

import pytest

from conf.schema.kernels import KernelsConfig
from conf.schema.load import EngineConfig
from serve import option_reasons
from serve.engine import launch
from serve.fit import Fit
from serve.kernels.settings import read_settings
from serve.option_reasons import choose_options
from serve.resolving import ServedCheckpoint

MEMORY = Fit(weights_gib=1.0, cache_gib=10.0, context=1024, limit=1024, share=0.9)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (launch, option_reasons):
        monkeypatch.setattr(module, "on_cpu", lambda: False)


def test_a_measured_additional_config_stays_beside_our_entry(on_gpu: None) -> None:
    served = ServedCheckpoint(Path("x"), "x", options={"additional_config": {"theirs": 1}})
    chosen = choose_options(EngineConfig(kernels=KernelsConfig(["sparse"])), served, MEMORY)
    entries = chosen.options["additional_config"]
    assert entries["theirs"] == 1
    assert read_settings(entries).families == ("sparse",)


def test_it_is_said_that_vllms_own_kernels_were_measured(on_gpu: None) -> None:
    own = KernelsConfig(["vllm"])
    served = ServedCheckpoint(Path("x"), "x", kernels=own)
    chosen = choose_options(EngineConfig(kernels=own), served, MEMORY)
    assert read_settings(chosen.options["additional_config"]).families == ()
    assert "it was measured on vLLM's own kernels" in "\n".join(chosen.lines)


def test_a_cpu_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (launch, option_reasons):
        monkeypatch.setattr(module, "on_cpu", lambda: True)
    chosen = choose_options(EngineConfig(), ServedCheckpoint(Path("x"), "x"), MEMORY)
    assert "additional_config" not in chosen.options
