"""The least time of a scenario, computed by hand."""

from typing import Any

import pytest

from conf.schema.load import ScenarioConfig
from evaluate.measure.roofline import Cost, Experts, Rates, cost, least_time, reached
from evaluate.results.row_types import Limit
from evaluate.results.row_values import SpeedValues
from serve.tensors import Tensor

CONFIG = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
}
INT8 = {"num_bits": 8, "type": "int"}


def weigh(*arguments: Any, **options: Any) -> Cost:
    found = cost(*arguments, **options)
    assert found is not None
    return found


def quantized(weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"weights": weights, "input_activations": activations}
    return CONFIG | {"quantization_config": {"config_groups": {"group_0": group}}}


def test_a_16_bit_checkpoint_weighs_its_bytes() -> None:
    tensors = {
        "model.layers.0.mlp.up_proj.weight": Tensor("BF16", (128, 64)),
        "model.layers.0.norm.weight": Tensor("BF16", (64,)),
        "model.embed_tokens.weight": Tensor("BF16", (1000, 64)),
        "lm_head.weight": Tensor("BF16", (1000, 64)),
    }
    found = weigh(tensors, CONFIG, dtype_bytes=2)
    assert found.body_bytes == (128 * 64 + 64) * 2
    assert found.body_weights == 128 * 64
    assert found.head_bytes == 1000 * 64 * 2
    assert found.kv_bytes == 2 * 2 * 2 * 16 * 2
    assert found.attention_operations == 4 * 2 * 4 * 16
    assert found.product == "bf16"
    assert weigh(tensors, CONFIG, dtype_bytes=4).body_bytes == 2 * found.body_bytes
    assert weigh(tensors, CONFIG, 2, kv_bytes=1).kv_bytes == found.kv_bytes / 2


def test_packed_weights_count_by_the_bits_of_their_group() -> None:
    tensors = {
        "model.layers.0.up.weight_packed": Tensor("I32", (128, 8)),
        "model.layers.0.down.weight_packed": Tensor("I32", (128, 16)),
    }
    groups = {
        f"group_{bits}": {
            "weights": INT8 | {"num_bits": bits},
            "targets": [f"model.layers.0.{name}"],
        }
        for name, bits in (("up", 4), ("down", 8))
    }
    config = CONFIG | {"quantization_config": {"config_groups": groups}}
    assert weigh(tensors, config, 2).body_weights == 2 * 128 * 64


def test_a_tied_head_is_the_embedding() -> None:
    tensors = {"model.embed_tokens.weight": Tensor("BF16", (1000, 64))}
    assert weigh(tensors, CONFIG, 2).head_weights == 64_000


def test_packed_weights_count_one_by_one() -> None:
    tensors = {
        "model.layers.0.up.weight_packed": Tensor("I32", (128, 8)),
        "model.layers.0.up.weight_scale": Tensor("BF16", (128, 2)),
    }
    found = weigh(tensors, quantized({"num_bits": 4, "type": "int"}, None), 2)
    assert found.body_weights == 128 * 64
    assert found.body_bytes == 128 * 8 * 4 + 128 * 2 * 2
    assert found.product == "bf16"


@pytest.mark.parametrize(("kind", "product"), [("int", "int8"), ("float", "fp8")])
def test_activations_say_what_is_multiplied(kind: str, product: str) -> None:
    tensors = {"model.layers.0.up.weight": Tensor("I8", (128, 64))}
    found = weigh(tensors, quantized(INT8, {"num_bits": 8, "type": kind}), 2)
    assert found.product == product


def test_int4_weights_with_fp8_activations_are_read_packed_and_multiplied_in_fp8() -> None:
    tensors = {"model.layers.0.up.weight_packed": Tensor("I32", (128, 16))}
    weights = {"num_bits": 4, "type": "int", "group_size": 128}
    found = weigh(tensors, quantized(weights, {"num_bits": 8, "type": "float"}), 2)
    assert found.body_weights == 128 * 128
    assert found.body_bytes == 128 * 64
    assert found.product == "fp8"


def test_a_hub_models_fp8_multiplies_in_fp8() -> None:
    tensors = {"model.layers.0.up.weight": Tensor("F8_E4M3", (128, 64))}
    found = weigh(tensors, CONFIG | {"quantization_config": {"quant_method": "fp8"}}, 2)
    assert found.product == "fp8"


def test_a_head_has_bits_of_its_own() -> None:
    groups = {
        "lm_head": {"targets": ["re:.*lm_head$"], "weights": {"num_bits": 8}},
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}},
    }
    tensors = {
        "lm_head.weight_packed": Tensor("I32", (100, 16)),
        "model.layers.0.up.weight_packed": Tensor("I32", (100, 8)),
    }
    found = weigh(tensors, CONFIG | {"quantization_config": {"config_groups": groups}}, 2)
    assert found.head_weights == found.body_weights == 100 * 64


MIXTURE = {
    "model.layers.0.mlp.gate.weight": Tensor("BF16", (4, 64)),
    "model.layers.0.mlp.shared_expert.up.weight": Tensor("BF16", (100, 64)),
    **{f"model.layers.0.mlp.experts.{i}.up.weight": Tensor("BF16", (50, 64)) for i in range(4)},
}
COUNTS = {"num_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize("counts", [{}, {"num_experts": 4}, COUNTS | {"num_experts_per_tok": 5}])
def test_a_mixture_without_its_counts_is_not_guessed(counts: dict[str, int]) -> None:
    assert cost(MIXTURE, CONFIG | counts, 2) is None


def test_a_step_reads_the_experts_that_its_tokens_visit() -> None:
    found = weigh(MIXTURE, CONFIG | COUNTS, dtype_bytes=2)
    shared, routed = 104 * 64, 200 * 64
    assert found.body_weights == shared
    assert found.weights_per_token == shared + routed / 2
    assert found.weight_gib == (shared + routed) * 2 / 2**30
    # One token visits half of them; of two tokens, the second finds half of the rest.
    assert found.layer_bytes(1) == 2 * (shared + routed / 2)
    assert found.layer_bytes(2) == 2 * (shared + routed * 3 / 4)
    assert found.layer_bytes(1000) == pytest.approx(2 * (shared + routed))
    assert weigh(MIXTURE, CONFIG | {"num_local_experts": 4, "num_experts_per_tok": 2}, 2) == found


def test_decoding_a_mixture_reads_more_experts_with_the_batch() -> None:
    work = Cost(0, 0, 0, 0, 0, 0, "bf16", "bf16", Experts(1000, 500, 4, 2))
    rates = Rates(100.0, {"bf16": 1e6}, "measured")
    for batch, read in ((1, 500), (2, 750)):
        scenario = ScenarioConfig(input_tokens=100, output_tokens=2, batch=batch)
        found = least_time(work, scenario, rates)
        assert found.decode_s == pytest.approx(read / 100)
        assert found.prefill_s == pytest.approx(10)
    slow = Rates(1e9, {"bf16": 1e3}, "measured")
    scenario = ScenarioConfig(input_tokens=100, output_tokens=1, batch=1)
    assert least_time(work, scenario, slow).prefill_s == pytest.approx(2 * 250 * 100 / 1e3)


def test_shares_need_phases() -> None:
    work = Cost(1000, 0, 500, 0, 10, 4, "bf16", "bf16")
    rates = Rates(100.0, {"bf16": 1e4}, "measured")
    scenario = ScenarioConfig(input_tokens=3, output_tokens=3, batch=2)
    values = SpeedValues(latency_s=100.0, ttft_last_s=20.0, overlap_share=0.0)
    found = reached(work, scenario, rates, values)
    assert found.prefill_share == pytest.approx(found.prefill_s / 20)
    assert found.decode_share == pytest.approx(found.decode_s / 80)
    assert reached(work, scenario, rates, values.with_fields(overlap_share=0.2)) == Limit()
    short = ScenarioConfig(input_tokens=3, output_tokens=1, batch=2)
    assert reached(work, short, rates, values).decode_share is None


def test_decoding_reads_and_a_prompt_multiplies() -> None:
    work = Cost(
        body_bytes=1000, head_bytes=200, body_weights=500, head_weights=100, kv_bytes=10,
        attention_operations=4, product="bf16", plain_product="bf16",
    )  # fmt: skip
    rates = Rates(bandwidth=100.0, products={"bf16": 1e4}, source="measured")
    scenario = ScenarioConfig(input_tokens=3, output_tokens=3, batch=2)
    found = least_time(work, scenario, rates)
    assert found.prefill_s == pytest.approx((1000 + 200 + 6 * 10) / 100)
    assert found.prefill_bound == "memory"
    steps = [(1200 + 2 * (3 + step) * 10) / 100 for step in (1, 2)]
    assert found.decode_s == pytest.approx(sum(steps))

    slow = Rates(bandwidth=1e9, products={"bf16": 1e4}, source="measured")
    found = least_time(work, scenario, slow)
    operations = 2 * 500 * 6 + 2 * 100 * 2 + 4 * (2 * 3 * 4 / 2)
    assert found.prefill_s == pytest.approx(operations / 1e4)
    assert found.prefill_bound == found.decode_bound == "compute"


def test_eight_bit_products_run_at_their_own_rate() -> None:
    work = Cost(0, 0, 1000, 0, 0, 0, "int8", "bf16")
    rates = Rates(1.0, {"bf16": 1e3, "int8": 2e3}, "measured")
    scenario = ScenarioConfig(input_tokens=5, output_tokens=1, batch=1)
    assert least_time(work, scenario, rates).prefill_s == pytest.approx(2 * 1000 * 5 / 2e3)
    assert least_time(work, scenario, rates).decode_s == 0
