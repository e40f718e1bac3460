"""vLLM's FlashAttention offers our class to engines that ask for it, and marks fresh steps."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from serve.kernels.attention import hook, steps
from serve.kernels.settings import Settings
from tests.serve.kernels.attention.step import common_of_step


class Own:
    pass


@pytest.fixture
def module() -> Any:
    class Backend:
        @staticmethod
        def get_impl_cls() -> type[Any]:
            return Own

    class Builder:
        def build(self, common_prefix_len: int, common: Any, fast_build: bool = False) -> Any:
            return SimpleNamespace(fast=fast_build)

    made: Any = ModuleType("flash_attn")
    made.FlashAttentionBackend, made.FlashAttentionMetadataBuilder = Backend, Builder
    return made


@pytest.mark.parametrize(
    ("families", "is_ours"), [(("attention",), True), (("one_token",), False), ((), False)]
)
def test_an_engine_gets_the_class_that_it_asks_for(
    families: tuple[str, ...], is_ours: bool, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "current_settings", lambda: Settings(families))
    hook._insert(module)
    hook._insert(module)
    found = module.FlashAttentionBackend.get_impl_cls()
    assert (found.__name__ == "QuantlineAttentionImpl") is is_ours
    assert (found is Own) is not is_ours


@pytest.mark.parametrize("name", ["engine_refusal", "capability_refusal"])
def test_an_engine_that_we_cannot_serve_gets_vllms_class(
    name: str, module: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hook, "current_settings", lambda: Settings(("attention",)))
    monkeypatch.setattr(hook, name, lambda: f"does not fit {name}")
    hook._insert(module)
    assert [module.FlashAttentionBackend.get_impl_cls() for _ in range(2)] == [Own, Own]
    assert caplog.text.count(f"ours does not fit {name}") == 1


def test_steps_are_marked(module: Any) -> None:
    hook._insert(module)
    builder = module.FlashAttentionMetadataBuilder()
    fresh = builder.build(0, common_of_step([4], [4]), fast_build=True)
    assert (getattr(fresh, steps.FRESH), fresh.fast) == (True, True)
    assert not getattr(builder.build(0, common_of_step([4], [9])), steps.FRESH)


def test_a_vllm_without_these_names_runs_its_own(caplog: pytest.LogCaptureFixture) -> None:
    hook._insert(ModuleType("flash_attn"))
    assert "vLLM's own attention is used" in caplog.text
