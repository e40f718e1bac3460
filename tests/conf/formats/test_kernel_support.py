"""Whether and with which kernels vLLM runs a stored format on a machine, in words."""

import pytest

from conf.formats.base.stored_format import KernelSupport, Machine
from conf.formats.quantization_config import read_quantization
from conf.formats.registry import format_of_config
from conf.formats.served import support

INT8 = {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"type": "int"}}
FP8 = {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"type": "float"}}
FP8_DYNAMIC = {
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
}
INT8_DYNAMIC = {
    "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
    "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
}
W8A16 = {"weights": {"num_bits": 8, "type": "int"}, "input_activations": None}
W4A16 = {"weights": {"num_bits": 4, "type": "int"}, "input_activations": None}
W4AFP8 = {
    "weights": {"num_bits": 4, "type": "int", "group_size": 128},
    "input_activations": {"type": "float"},
}
FP4 = {"weights": {"num_bits": 4, "type": "float"}, "input_activations": None}
NVFP4 = FP4 | {"input_activations": {"num_bits": 4, "type": "float"}}
MXFP4 = {
    "weights": {"num_bits": 4, "type": "float", "group_size": 32},
    "format": "mxfp4-pack-quantized",
}


def support_of(
    content: dict[str, object], capability: float | None = 9.0, processor: str = "x86_64"
) -> KernelSupport:
    return support(read_quantization(content, "config.json"), Machine(capability, processor))


@pytest.mark.parametrize(
    ("group", "capability", "processor", "runs", "summary"),
    [
        (INT8, 9.0, "x86_64", True, "CutlassInt8"),
        (INT8, 10.0, "x86_64", False, "no INT8 kernel for compute capability 10"),
        (INT8, None, "aarch64", True, "CPUInt8"),
        (FP8, 9.0, "x86_64", True, "CutlassFP8"),
        (FP8, 8.0, "x86_64", True, "weight-only Marlin"),
        (FP8, 7.5, "x86_64", True, "weight-only Marlin"),
        (FP8, None, "x86_64", True, "slower than INT8"),
        (W8A16, 9.0, "x86_64", True, "Machete"),
        (W8A16, 8.0, "x86_64", True, "Marlin"),
        (W8A16, None, "x86_64", False, "no CPU kernel for w8a16"),
        (W4A16, None, "x86_64", True, "CPUWNA16"),
        (W4A16, None, "aarch64", False, "no CPU kernel for w4a16 on aarch64"),
        (W4AFP8, 9.0, "x86_64", True, "CutlassW4A8"),
        (W4AFP8, 8.9, "x86_64", False, "on Hopper only"),
        (W4AFP8, 10.0, "x86_64", False, "on Hopper only"),
        (W4AFP8, None, "x86_64", False, "no CPU kernel for int4 weights with FP8 activations"),
        (FP4, 10.0, "x86_64", True, "weight-only Marlin or FlashInfer"),
        (FP4, 9.0, "x86_64", True, "weight-only Marlin"),
        (NVFP4, 10.0, "x86_64", True, "native FP4"),
        (NVFP4, 9.0, "x86_64", True, "weight-only Marlin with 16-bit activations, since compute"),
        (NVFP4, None, "x86_64", False, "no CPU kernel for fp4"),
        (W4A16, 7.0, "x86_64", False, "since Turing"),
    ],
)
def test_what_runs_where_is_said_in_words(
    group: dict[str, object], capability: float | None, processor: str, runs: bool, summary: str
) -> None:
    answer = support_of({"config_groups": {"group_0": group}}, capability, processor)
    assert answer.runs is runs
    assert summary in answer.summary
    assert runs or answer.instead


def test_every_group_of_layers_counts() -> None:
    mixed = {"group_0": W4A16 | {"targets": ["a"]}, "group_1": W8A16 | {"targets": ["b"]}}
    assert support_of({"config_groups": mixed}).summary == "Machete"
    refused = support_of({"config_groups": mixed}, capability=None)
    assert not refused.runs
    assert "no CPU kernel for w8a16" in refused.summary
    products = {"group_0": W4AFP8, "group_1": FP8}
    assert support_of({"config_groups": products}).summary == "CutlassW4A8, CutlassFP8ScaledMM"
    head = {"group_0": W4A16, "lm_head": W8A16 | {"targets": ["re:.*lm_head$"]}}
    assert support_of({"config_groups": head}, capability=None).runs


@pytest.mark.parametrize(
    ("group", "machine", "runs", "summary"),
    [
        (FP8_DYNAMIC, Machine(9.0, "x86_64"), True, "experts: CUTLASS or Triton MoE"),
        (FP8_DYNAMIC, Machine(8.9, "x86_64"), True, "experts: Triton MoE"),
        (FP8_DYNAMIC, Machine(8.0, "x86_64"), True, "experts: weight-only Marlin MoE"),
        (FP8_DYNAMIC, Machine(None, "x86_64", has_amx=True), False, "experts of FP8 on this CPU"),
        (
            FP8_DYNAMIC | {"input_activations": None},
            Machine(9.0, "x86_64"),
            False,
            "FP8 experts need",
        ),
        (INT8_DYNAMIC, Machine(9.0, "x86_64"), True, "experts: Triton MoE"),
        (INT8_DYNAMIC, Machine(10.0, "x86_64"), False, "no INT8 kernel for compute capability 10"),
        (INT8_DYNAMIC, Machine(None, "x86_64", has_amx=True), True, "experts: CPUExpertsInt8"),
        (INT8_DYNAMIC, Machine(None, "aarch64", has_i8mm=True), True, "experts: CPUExpertsInt8"),
        (INT8_DYNAMIC, Machine(None, "aarch64"), False, "needs AMX on x86, i8mm on ARM"),
        (INT8_DYNAMIC, Machine(None, "x86_64"), False, "INT8 on this CPU (x86_64); that needs AMX"),
        (W4A16, Machine(9.0, "x86_64"), True, "Machete; experts: Marlin MoE"),
        (W4A16, Machine(None, "x86_64", has_amx=True), True, "experts: CPUExpertsInt4"),
        (W4A16, Machine(None, "x86_64"), False, "experts of int4 on this CPU"),
        (W4AFP8, Machine(9.0, "x86_64"), True, "experts: CUTLASS W4A8 MoE"),
        (FP4, Machine(9.0, "x86_64"), True, "experts: FP4 MoE"),
    ],
)
def test_experts_have_kernels_of_their_own(
    group: dict[str, object], machine: Machine, runs: bool, summary: str
) -> None:
    quantization = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    answer = support(read_quantization(quantization, "config.json"), machine, True)
    assert answer.runs is runs
    assert summary in answer.summary
    assert runs or answer.instead


def test_stored_sparsity_runs_nowhere() -> None:
    assert not support_of({"sparsity_config": {"format": "sparse-24-bitmask"}}).runs
    assert support_of({}).summary == "the 16-bit kernels"


@pytest.mark.parametrize(
    ("quantization", "name", "summary"),
    [
        ({"quant_method": "awq", "w_bit": 4}, "weight_only_int", "Machete"),
        ({"quant_method": "gptq", "bits": 8}, "weight_only_int", "Machete"),
        ({"quant_method": "gptq", "bits": 3}, "weight_only_int", "(gptq) is not known here"),
        ({"quant_method": "fp8"}, "fp8", "CutlassFP8ScaledMM"),
        ({"quant_method": "bitsandbytes"}, None, "(bitsandbytes) is not known here"),
        ({"config_groups": {"g": INT8 | {"weights": {"num_bits": 4}}}}, "int8", "not known here"),
        ({"config_groups": {"g": MXFP4}}, "mx", "weight-only Marlin with 16-bit activations"),
    ],
)
def test_formats_of_others_are_known_or_said_to_be_unknown(
    quantization: dict[str, object], name: str | None, summary: str
) -> None:
    stored = format_of_config(read_quantization(quantization, "config.json"))
    assert (stored.name if stored else None) == name
    assert summary in support_of(quantization).summary
    assert not support_of(quantization, 7.0).runs
