"""Mixtures of experts in the layout of one linear layer for each product."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from llmcompressor.modeling.moe.context import moe_calibration_context
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    MixtralConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from conf.errors import QuantlineError
from conf.formats.quant_args import Codebooks, QuantArgs
from conf.mixture import MIXTURES
from quantize.calibrate.solver.products import SharedProducts
from quantize.models.experts import LinearExperts, experts_of, linear_experts, only_chosen_experts
from quantize.models.mixtures import (
    SHARED_GATES,
    NumberTypes,
    check_experts_layout,
    check_mixture,
    kept_patterns,
    with_routers,
)
from quantize.steps.base.step import steps_named

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 64,
}  # fmt: skip
CONFIGS = {
    "mixtral": MixtralConfig(**SIZES),
    "qwen2_moe": Qwen2MoeConfig(
        **SIZES, moe_intermediate_size=16, shared_expert_intermediate_size=32
    ),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, moe_intermediate_size=16, head_dim=16),
}
UP = "model.layers.0.mlp.experts.3.up_proj"
TOKENS = torch.arange(24).view(2, 12)


@pytest.fixture(params=list(CONFIGS))
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A mixture of each family, as transformers itself saves it."""
    torch.manual_seed(0)
    family = str(request.param)
    AutoModelForCausalLM.from_config(CONFIGS[family]).save_pretrained(tmp_path / "saved")
    return family, tmp_path / "saved"


def loaded(folder: Path, family: str = "") -> Any:
    with linear_experts(family):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_linear_experts_compute_what_fused_ones_do(saved: tuple[str, Path]) -> None:
    family, folder = saved
    fused, linear = loaded(folder), loaded(folder, family)
    assert len(experts_of(linear)) == 2
    assert not experts_of(fused)
    with torch.no_grad():
        expected = fused(TOKENS).logits
        assert torch.allclose(linear(TOKENS).logits, expected, atol=1e-6)
        with moe_calibration_context():
            assert torch.allclose(linear(TOKENS).logits, expected, atol=1e-6)


def test_all_experts_see_all_tokens_while_calibrating(saved: tuple[str, Path]) -> None:
    family, folder = saved
    model, seen = loaded(folder, family), []
    for experts in experts_of(model).values():
        for expert in experts:
            expert.down.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    with torch.no_grad(), moe_calibration_context():
        model(TOKENS)
    assert seen == [TOKENS.numel()] * 2 * SIZES["num_experts"]
    # The two products that read the tokens follow one another in all experts, and share one X'X.
    products = SharedProducts()
    for experts in experts_of(model).values():
        for module in experts.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(lambda each, args: products.add(each, args[0]))
    with torch.no_grad(), moe_calibration_context():
        model(TOKENS)
    assert sorted(map(len, products.groups())) == [1] * 8 + [8, 8]
    seen.clear()
    with torch.no_grad(), moe_calibration_context(), only_chosen_experts():
        model(TOKENS)
    assert sum(seen) == TOKENS.numel() * 2 * SIZES["num_experts_per_tok"]


def test_saved_names_are_the_modules_and_transformers_reads_them(
    saved: tuple[str, Path], tmp_path: Path
) -> None:
    family, folder = saved
    linear = loaded(folder, family)
    linear.save_pretrained(tmp_path / "again")
    names = MIXTURES[family]
    stored = [set(load_file(each / "model.safetensors")) for each in (folder, tmp_path / "again")]
    assert stored[0] == stored[1] == {name for name, _ in linear.named_parameters()}
    assert f"model.layers.1.{names.block}.experts.3.{names.down}.weight" in stored[1]
    fused = loaded(tmp_path / "again")
    with torch.no_grad():
        assert torch.allclose(fused(TOKENS).logits, linear(TOKENS).logits, atol=1e-6)


def test_outside_transformers_is_as_it_was(saved: tuple[str, Path]) -> None:
    family, folder = saved
    with pytest.raises(RuntimeError, match="stop"), linear_experts(family):
        raise RuntimeError("stop")
    assert not any(isinstance(module, LinearExperts) for module in loaded(folder).modules())


def empty(family: str) -> Any:
    with torch.device("meta"), linear_experts(family):
        return AutoModelForCausalLM.from_config(CONFIGS[family])


def test_shared_gates_and_routers_stay_as_they_are() -> None:
    assert kept_patterns(empty("qwen2_moe")) == [SHARED_GATES]
    assert kept_patterns(empty("qwen3_moe")) == []
    ignored = with_routers({"ignore": ["lm_head"]}, empty("qwen3_moe"))["ignore"]
    assert ignored == ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]
    ignored = with_routers({}, empty("mixtral"))["ignore"]
    assert ignored == [f"model.layers.{layer}.block_sparse_moe.gate" for layer in range(2)]
    dense = torch.nn.Linear(2, 2)
    assert with_routers({"ignore": ["lm_head"]}, dense) == {"ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("family", "is_refused"), [("qwen2_moe", True), ("qwen3_moe", False), ("mixtral", False)]
)
def test_awq_is_refused_where_it_does_not_know_a_shared_expert(
    family: str, is_refused: bool
) -> None:
    (awq,) = steps_named(["awq"])
    refused = pytest.raises(QuantlineError, match=r"awq: scales .*\.0\.mlp\.shared_expert reads")
    with refused if is_refused else nullcontext():
        awq.check_model(empty(family), "m", None, "awq")
    (smooth,) = steps_named(["smoothquant"])
    smooth.check_model(empty(family), "m", None, "smoothquant")


INT4 = QuantArgs("int", 4, "group", 128)
INT8 = QuantArgs("int", 8, "channel")
FP8 = QuantArgs("float", 8, "channel")
FP8_BY_TENSOR = QuantArgs("float", 8, "tensor")
BY_TOKEN = QuantArgs("float", 8, "token", scales="dynamic")
IN_CODEBOOKS = QuantArgs("vector", 0, "tensor", codebooks=Codebooks(8, 256))


def rounded_to(weights: QuantArgs, activations: QuantArgs | None = None) -> dict[str, NumberTypes]:
    """All linear layers of a mixture with a shared expert."""
    linears = [
        name
        for name, module in empty("qwen2_moe").named_modules()
        if isinstance(module, torch.nn.Linear) and not name.endswith(("head", "expert_gate"))
    ]
    return dict.fromkeys(linears, (weights, activations))


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (
            {"model.layers.0.mlp.shared_expert_gate": (INT4, None)},
            r"recipe.ignore: .* stays in 16 bit",
        ),
        (rounded_to(IN_CODEBOOKS), "no engine runs experts in codebooks"),
        (rounded_to(QuantArgs("int", 3, "group", 128)), "int weights of 4 bits"),
        (rounded_to(FP8), "FP8 experts need"),
        (rounded_to(FP8, FP8_BY_TENSOR), "FP8 experts need"),
        (rounded_to(INT8, QuantArgs("int", 8, "tensor")), "INT8 experts need"),
        (rounded_to(INT4) | {UP: (INT8, None)}, f"experts.0.gate_proj and {UP} are stored in diff"),
    ],
)
def test_what_no_engine_runs_is_refused(modules: dict[str, NumberTypes], message: str) -> None:
    with pytest.raises(QuantlineError, match=message):
        check_mixture(empty("qwen2_moe"), "recipe", modules)


def test_experts_of_one_layer_are_rounded_all_or_not_at_all() -> None:
    model, modules = empty("qwen2_moe"), rounded_to(INT4)
    check_mixture(model, "recipe", modules)
    check_mixture(
        model, "recipe", {name: m for name, m in modules.items() if "layers.0." not in name}
    )
    check_mixture(model, "recipe", rounded_to(FP8, BY_TOKEN))
    with pytest.raises(QuantlineError, match=f"{UP} are stored in different formats"):
        check_mixture(model, "recipe", {name: m for name, m in modules.items() if name != UP})


def test_fused_experts_of_other_families_are_refused() -> None:
    """They are no linear layers: a recipe would leave nine tenths of the model as it was."""
    names = {"num_local_experts": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
    config = AutoConfig.for_model("minimax", num_hidden_layers=1, **names)
    with torch.device("meta"), linear_experts("minimax"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(QuantlineError, match=r"model=m: .*\(model.layers.0.mlp.experts.gate_up_"):
        check_experts_layout(model, "m")
