"""What the model files say, against known totals and against transformers' own models."""

import pytest

from conf import sources
from conf.architecture import Architecture
from conf.compose import compose
from conf.errors import QuantlineError
from quantize.command import COMMAND as QUANTIZE

# Parameters as the checkpoints on the hub hold them, a tied head counted once.
KNOWN = {
    "smollm2-135m": 134_515_008,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2.5-coder-0.5b": 494_032_768,
    "qwen2.5-coder-1.5b": 1_543_714_304,
    "qwen2-7b": 7_615_616_512,
    "qwen2-57b-a14b": 57_410_000_000,  # as published, rounded
    "qwen2-72b": 72_706_203_648,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
}
LISTED = [name for name in sources.choices("model", []) if name != "custom"]


def architecture(name: str) -> Architecture:
    found = compose(QUANTIZE, [f"model={name}"]).model.architecture
    assert isinstance(found, Architecture)
    return found


@pytest.mark.parametrize(("name", "total"), KNOWN.items())
def test_parameters_match_the_known_total(name: str, total: int) -> None:
    rounded = total % 1_000_000 == 0
    assert architecture(name).parameters == pytest.approx(total, rel=1e-4 if rounded else 0)


@pytest.mark.parametrize("name", LISTED)
def test_parameters_match_the_model_that_transformers_builds(name: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from quantize.models.architecture_config import architecture_config

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(architecture_config(architecture(name)))
    assert model.num_parameters() == architecture(name).parameters


def test_every_listed_model_has_a_known_total() -> None:
    assert set(LISTED) - set(KNOWN) == {"tiny", "tiny-moe"}


def test_the_heads_share_of_what_a_token_reads() -> None:
    """15 % of the bytes at 8 bit and 26 % at 4 bit, for Qwen3-8B."""
    qwen = architecture("qwen3-8b")
    head = qwen.embedding_parameters * 2
    assert head / qwen.weight_bytes_per_token(8) == pytest.approx(0.152, abs=0.001)
    assert head / qwen.weight_bytes_per_token(4) == pytest.approx(0.264, abs=0.001)


def test_bytes_per_token_at_16_bit_are_all_weights_but_the_embedding() -> None:
    qwen = architecture("qwen3-8b")
    all_but_embedding = (qwen.parameters - qwen.embedding_parameters) * 2
    assert qwen.weight_bytes_per_token() == pytest.approx(all_but_embedding, rel=1e-5)


def test_kv_bytes_per_token() -> None:
    """2 (keys and values) x 36 layers x 8 heads x 128 x 2 bytes."""
    assert architecture("qwen3-8b").kv_bytes_per_token() == 147_456
    assert architecture("qwen3-8b").kv_bytes_per_token(bits=8) == 73_728


def test_a_mixture_reads_only_the_experts_a_token_visits() -> None:
    mixture = architecture("qwen2-57b-a14b")
    active = mixture.layer_weights_per_token + 2 * mixture.embedding_parameters
    assert active == pytest.approx(14.2e9, rel=0.01)


def test_qwen3_30b_activates_3_3b() -> None:
    mixture = architecture("qwen3-30b-a3b")
    active = mixture.layer_weights_per_token + 2 * mixture.embedding_parameters
    assert active == pytest.approx(3.3e9, rel=0.02)


def test_mixtral_activates_12_9b() -> None:
    mixture = architecture("mixtral-8x7b")
    active = mixture.layer_weights_per_token + 2 * mixture.embedding_parameters
    assert active == pytest.approx(12.9e9, rel=0.01)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model_type=mixtral", "moe_intermediate_size=256: .* as wide as intermediate_size says"),
        ("num_experts=0", "num_experts=0 does not fit model_type=qwen3_moe"),
        ("num_experts_per_tok=9", "a token visits 1 to 8 experts"),
        ("moe_intermediate_size=0", "moe_intermediate_size is needed"),
    ],
)
def test_a_mixture_needs_all_its_sizes(change: str, message: str) -> None:
    with pytest.raises(QuantlineError, match=message):
        compose(QUANTIZE, ["model=tiny-moe", f"model.architecture.{change}"])


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_tiny_models_fit_every_scheme(name: str) -> None:
    for matrix in architecture(name).layer_matrices:
        assert matrix.rows % 128 == 0, matrix
        assert matrix.columns % 128 == 0, matrix
