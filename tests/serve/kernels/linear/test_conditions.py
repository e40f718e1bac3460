"""Which layers our kernel classes take, and why not; on a machine without a GPU none."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm.config
import vllm.envs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kFp8Static128BlockSym,
    kFp8StaticChannelSym,
    kFp8StaticTensorSym,
)
from vllm.platforms import current_platform
from vllm.scalar_type import scalar_types

from serve.kernels import record
from serve.kernels.linear import conditions, fp8, fp8_head, int8, packed, w4afp8, weight_only
from serve.kernels.linear.conditions import (
    answer,
    capability_refusal,
    engine_refusal,
    not_offered,
    own_refusal,
    run_by_vllm,
    vllms_choice,
)
from serve.kernels.record import LayerKernels, TokenRange

CLASSES = [
    int8.QuantlineInt8LinearKernel,
    fp8.QuantlineFp8LinearKernel,
    fp8_head.QuantlineFp8HeadKernel,
    weight_only.QuantlineWeightOnlyLinearKernel,
    w4afp8.QuantlineW4AFp8LinearKernel,
]


class Cutlass: ...


class CutlassW4A8: ...


class Machete: ...


class Humming: ...


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The lines of one engine."""
    record.forget()
    caplog.set_level("INFO", logger="vllm.quantline")
    return caplog


@pytest.mark.parametrize("kernel", CLASSES, ids=lambda kernel: kernel.__name__)
def test_without_a_gpu_no_layer_is_taken(kernel: Any, log: pytest.LogCaptureFixture) -> None:
    assert kernel.can_implement(None) == (False, "runs on NVIDIA GPUs only")
    assert not getattr(kernel, "__abstractmethods__", None)
    assert log.text == ""


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that there is a GPU, and that the engine asks for all families."""
    monkeypatch.setattr(type(current_platform), "is_cuda", lambda _: True)
    families = ("one_token", "sparse", "weight_only", "w4afp8")
    monkeypatch.setattr(conditions, "asked_families", lambda: families)
    for module in (int8, fp8, conditions):
        monkeypatch.setattr(module, "vllms_choice", lambda *_: Cutlass)
    monkeypatch.setattr(fp8_head, "vllms_choice", lambda *_: Humming)
    monkeypatch.setattr(
        packed, "vllms_choice", lambda _, c: Machete if c.out_type is None else CutlassW4A8
    )


@pytest.mark.usefixtures("cuda")
def test_an_engine_that_cannot_use_them_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not_offered("sparse") is None
    assert engine_refusal() is None
    config = SimpleNamespace(lora_config=object())
    monkeypatch.setattr(vllm.config, "get_current_vllm_config_or_none", lambda: config)
    assert engine_refusal() == "does not run LoRA adapters"
    config.lora_config = None
    config.offload_config = SimpleNamespace(uva=SimpleNamespace(cpu_offload_gb=4))
    assert "offloaded to the host" in str(engine_refusal())
    config.offload_config = None
    assert engine_refusal() is None
    config.model_config = SimpleNamespace(enable_sleep_mode=True)
    assert "sleep mode" in str(engine_refusal())
    config.model_config = None
    monkeypatch.setattr(conditions, "asked_families", lambda: ("weight_only",))
    assert not_offered("one_token", "sparse") == "was not asked for"
    monkeypatch.setattr(vllm.envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    assert "VLLM_BATCH_INVARIANT" in str(engine_refusal())


LAYER = LayerKernels("fp8", 256, 128, (TokenRange(None, "Cutlass"),))


def no() -> None:
    """No reason to refuse a layer."""


def fail() -> Any:
    raise AttributeError("there is no such name in this version")


def test_why_a_layer_is_refused_is_logged_once(log: pytest.LogCaptureFixture) -> None:
    assert answer(no, no, lambda: LAYER) == (True, None)
    assert answer(lambda: "was not asked for", fail, fail) == (False, "was not asked for")
    assert log.text == ""
    for shape in (128, 128, 64):
        layer = replace(LAYER, columns=shape)
        assert answer(no, lambda: "takes none", lambda layer=layer: layer) == (False, "takes none")
    refused = {"all": "our kernel takes none"}
    assert record.read_log(log.text) == [
        replace(LAYER, columns=columns, refused=refused) for columns in (128, 64)
    ]
    line = "layers (fp8 256x128): Cutlass; left to vLLM: our kernel takes none"
    assert log.text.count(line) == 1
    record.forget()  # another engine
    answer(no, lambda: "takes none", lambda: LAYER)
    assert log.text.count(line) == 2


def test_an_error_is_a_refusal(log: pytest.LogCaptureFixture) -> None:
    reason = "fails: there is no such name in this version"
    assert answer(no, fail, lambda: LAYER) == (False, reason)
    assert answer(fail, no, lambda: LAYER) == (False, reason)
    assert [entry.levelname for entry in log.records] == ["WARNING", "INFO"]
    (layer,) = record.read_log(log.text)
    assert layer.refused == {"all": f"our kernel {reason}"}
    assert answer(no, lambda: "takes none", fail) == (False, "takes none")
    assert "left to vLLM: our kernel takes none (there is no such name" in log.text


@pytest.mark.usefixtures("cuda")
def test_an_old_gpu_is_refused_and_that_is_logged(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(conditions, "capability", lambda: 75)
    assert capability_refusal() == "needs compute capability 8, and this is 7.5"
    assert capability_refusal(fp8.ADA) == "needs compute capability 8.9, and this is 7.5"
    for kernel in CLASSES[:3]:
        assert kernel.is_supported(75) == (True, None), "vLLM would forget the reason"
    for kernel in CLASSES[3:]:
        assert kernel.get_min_capability() <= 75
    assert not weight_only.QuantlineWeightOnlyLinearKernel.can_implement(packed_config())[0]
    config = kernels.Int8ScaledMMLinearLayerConfig(False, True, True)
    assert not int8.QuantlineInt8LinearKernel.can_implement(config)[0]
    packed_layer, int8_layer = record.read_log(log.text)
    assert "needs compute capability 8, and" in packed_layer.refused["all"]
    assert (int8_layer.kind, int8_layer.rows, int8_layer.columns) == ("int8", 0, 0)
    assert "layers (int8): Cutlass; left to vLLM: our kernel needs" in log.text
    monkeypatch.setattr(conditions, "capability", lambda: 90)
    assert capability_refusal(fp8.ADA) is None


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("is_static", "is_symmetric", "reason"),
    [
        (False, True, None),
        (True, True, "rounds activations by token, and these have static scales"),
        (False, False, "takes symmetric activations only"),
    ],
)
def test_which_int8_layers_are_taken(
    is_static: bool, is_symmetric: bool, reason: str | None
) -> None:
    config = kernels.Int8ScaledMMLinearLayerConfig(is_static, True, is_symmetric)
    assert int8.QuantlineInt8LinearKernel.can_implement(config) == (reason is None, reason)


def fp8_config(**changes: Any) -> Any:
    fields = {
        "weight_quant_key": kFp8StaticChannelSym,
        "weight_shape": (256, 128),
        "input_dtype": torch.bfloat16,
        "out_dtype": torch.bfloat16,
    }
    return kernels.FP8ScaledMMLinearLayerConfig(**fields | changes)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"weight_quant_key": kFp8StaticTensorSym}, None),
        ({"activation_quant_key": kFp8StaticTensorSym}, "these have other scales"),
        ({"activation_quant_key": kFp8DynamicTensorSym}, "these have other scales"),
        ({"weight_quant_key": kFp8Static128BlockSym}, "not for blocks"),
        ({"out_dtype": torch.float32, "input_dtype": torch.float32}, "not torch.float32"),
    ],
)
def test_which_fp8_layers_are_taken(
    changes: dict[str, Any], reason: str | None, log: pytest.LogCaptureFixture
) -> None:
    config = fp8_config(**{"activation_quant_key": kFp8DynamicTokenSym} | changes)
    can, why = fp8.QuantlineFp8LinearKernel.can_implement(config)
    assert can is (reason is None)
    assert reason is None or reason in str(why)
    refused = {"all": f"our kernel {why}"}
    assert record.read_log(log.text) == ([] if can else [replace(LAYER, refused=refused)])


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"weight_quant_key": kFp8StaticTensorSym}, None),
        ({"weight_quant_key": kFp8Static128BlockSym}, "not for blocks"),
        ({"out_dtype": torch.float16}, "takes and gives bfloat16"),
    ],
)
def test_which_fp8_heads_are_taken(
    changes: dict[str, Any], reason: str | None, log: pytest.LogCaptureFixture
) -> None:
    config = fp8_config(**{"activation_quant_key": kFp8DynamicTensorSym} | changes)
    can, why = fp8_head.QuantlineFp8HeadKernel.can_implement(config)
    assert can is (reason is None)
    assert reason is None or reason in str(why)
    assert [layer.kind for layer in record.read_log(log.text)] == ([] if can else ["fp8a16"])


def packed_config(**changes: Any) -> Any:
    fields = {
        "full_weight_shape": (256, 128),
        "partition_weight_shape": (256, 128),
        "weight_type": scalar_types.uint4b8,
        "act_type": torch.bfloat16,
        "group_size": 128,
        "zero_points": False,
        "out_type": None,
    }
    return SimpleNamespace(**fields | changes)


FP8_ACTIVATIONS = {
    "weight_type": scalar_types.int4,
    "act_type": torch.float8_e4m3fn,
    "out_type": torch.bfloat16,
}


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"weight_type": scalar_types.uint4, "zero_points": True}, None),
        ({"weight_type": scalar_types.uint8b128, "group_size": -1}, None),
        ({"weight_type": scalar_types.uint3b4}, "takes weights of 4 or 8 bits"),
        ({"act_type": torch.int8}, "takes 16-bit activations"),
        ({"act_type": torch.float8_e4m3fn}, "takes no FP8 activations"),
        ({"has_g_idx": True}, "takes no reordered weights"),
        ({"partition_weight_shape": (256, 100)}, "in multiples of 64, not 100 x 256"),
        ({"partition_weight_shape": (192, 128)}, "no multiple of 128"),
        (
            {"partition_weight_shape": (128, 128), "group_size": -1, "zero_points": True},
            "that several GPUs share",
        ),
    ],
)
def test_which_weight_only_layers_are_taken(changes: dict[str, Any], reason: str | None) -> None:
    can, why = weight_only.QuantlineWeightOnlyLinearKernel.can_implement(packed_config(**changes))
    assert can is (reason is None)
    assert reason is None or reason in str(why)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"group_size": 64}, "takes groups of 128, not 64"),
        ({"zero_points": True}, "takes symmetric 4-bit weights"),
        ({"act_type": torch.bfloat16}, "takes FP8 activations"),
        ({"out_type": torch.float16}, "gives bfloat16"),
        ({"has_g_idx": True}, "takes no reordered weights"),
    ],
)
def test_which_w4afp8_layers_are_taken(changes: dict[str, Any], reason: str | None) -> None:
    config = packed_config(**FP8_ACTIVATIONS | changes)
    can, why = w4afp8.QuantlineW4AFp8LinearKernel.can_implement(config)
    assert can is (reason is None)
    assert reason is None or reason in str(why)


@pytest.mark.usefixtures("cuda")
def test_only_the_class_of_a_format_says_why_it_refuses_a_layer(
    log: pytest.LogCaptureFixture,
) -> None:
    classes = (w4afp8.QuantlineW4AFp8LinearKernel, weight_only.QuantlineWeightOnlyLinearKernel)
    odd = {"partition_weight_shape": (256, 100)}
    for config in (packed_config(**odd), packed_config(**odd | FP8_ACTIVATIONS)):
        assert [kernel.can_implement(config)[0] for kernel in classes] == [False, False]
    layers = record.read_log(log.text)
    assert [layer.kind for layer in layers] == ["w4a16", "w4afp8"]
    for layer in layers:
        assert (layer.rows, layer.columns) == (100, 256)
        assert layer.ranges == (TokenRange(None, "Cutlass"),)
        assert "in multiples of 64, not 100 x 256" in layer.refused["all"]
    assert weight_only.QuantlineWeightOnlyLinearKernel.can_implement(packed_config())[0]
    assert record.read_log(log.text) == layers


@pytest.mark.usefixtures("cuda")
def test_vllm_takes_its_own_kernel_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    class Own:
        @staticmethod
        def get_min_capability() -> int:
            return 75

        @staticmethod
        def can_implement(_: Any) -> tuple[bool, str | None]:
            return True, None

    classes = [w4afp8.QuantlineW4AFp8LinearKernel, weight_only.QuantlineWeightOnlyLinearKernel]
    monkeypatch.setattr(kernels, "_POSSIBLE_KERNELS", {current_platform._enum: [*classes, Own]})
    monkeypatch.setattr(conditions, "vllms_choice", vllms_choice)
    with set_current_vllm_config(VllmConfig()):
        for _ in range(2):
            config = packed_config(weight_type=scalar_types.uint3b4)
            assert kernels.choose_mp_linear_kernel(config) is Own
    (layer,) = record.read_log(log.text)
    assert (layer.kind, layer.ranges) == ("w3a16", (TokenRange(None, "Own"),))
    assert layer.refused == {"all": "our kernel takes weights of 4 or 8 bits, not uint3b4"}


def test_a_kernel_that_ours_are_not_compared_with_stays() -> None:
    assert own_refusal(Machete, "Marlin", "Machete") is None
    assert own_refusal(None, "Machete") == "needs a kernel of vLLM to fall back to"
    assert "vLLM runs this with Machete" in str(own_refusal(Machete, "Cutlass"))


def test_vllms_own_choice_is_the_first_that_can() -> None:
    class Ours:
        __module__ = "serve.kernels.linear.int8"

    class Unsupported:
        @staticmethod
        def is_supported(_: int | None) -> tuple[bool, str]:
            return False, ""

    class Unable:
        @staticmethod
        def get_min_capability() -> int:
            return 75

        @staticmethod
        def can_implement(_: Any) -> tuple[bool, str]:
            return False, ""

    class Able(Unable):
        @staticmethod
        def can_implement(_: Any) -> tuple[bool, str]:
            return True, ""

    platform = current_platform._enum
    assert vllms_choice({platform: [Ours, Unsupported, Unable, Able]}, None) is Able
    assert run_by_vllm({platform: [Ours, Able]}, None) == (TokenRange(None, "Able"),)
    assert run_by_vllm({platform: [Ours]}, None) == ()
    assert vllms_choice({platform: [Ours, Unsupported]}, None) is None
    assert vllms_choice({}, None) is None
