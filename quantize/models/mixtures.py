"""Which parts of a mixture of experts a recipe may change, and which stay in 16 bit."""

from collections.abc import Mapping

import torch

from conf.errors import bad_input
from conf.files.json_files import JsonObject
from conf.formats.quant_args import QuantArgs
from conf.formats.served import experts_refusal
from quantize.models.experts import FUSED_CLASSES, experts_of

NumberTypes = tuple[QuantArgs, QuantArgs | None]
"""Of weights and activations."""
SHARED_GATE = ".mlp.shared_expert_gate"
SHARED_GATES = r"re:.*\.mlp\.shared_expert_gate$"


def check_experts_layout(model: torch.nn.Module, name: str) -> None:
    """Refuses fused experts. transformers keeps a layer's experts in one three-dimensional tensor,
    which no recipe's pattern matches: the checkpoint would only claim to be quantized."""
    fused = [
        parameter_name
        for parameter_name, tensor in model.named_parameters()
        if tensor.dim() > 2 and "experts" in parameter_name
    ]
    if fused:
        raise bad_input(
            f"model={name}: its experts are kept as one tensor ({fused[0]} and {len(fused) - 1} "
            "more), which no recipe quantizes; of mixtures of experts, only those of model_type "
            f"{', '.join(FUSED_CLASSES)} can be quantized here"
        )


def check_mixture(model: torch.nn.Module, option: str, modules: Mapping[str, NumberTypes]) -> None:
    """Refuses a recipe whose mixture no engine runs. `modules`: the number types of weights and
    activations of the linear layers that it rounds; `option`: the start of messages."""
    for name in modules:
        if name.endswith(SHARED_GATE):
            raise bad_input(
                f"{option}.ignore: {name} stays in 16 bit, vLLM has no other format for it; add "
                f"'{SHARED_GATES}'"
            )
    for name, experts in experts_of(model).items():
        products = [
            f"{name}.{inner}"
            for inner, module in experts.named_modules()
            if isinstance(module, torch.nn.Linear)
        ]
        rounded = [product for product in products if product in modules]
        others = [product for product in rounded if modules[product] != modules[rounded[0]]]
        left_out = [product for product in products if product not in modules]
        if rounded and (others or left_out):
            raise bad_input(
                f"{option}: {rounded[0]} and {[*others, *left_out][0]} are stored in different "
                "formats; vLLM runs all experts of a layer in one format"
            )
        reason = experts_refusal(*modules[rounded[0]]) if rounded else None
        if reason is not None:
            raise bad_input(f"{option}: {rounded[0]} is part of an expert: {reason}")


def kept_patterns(model: torch.nn.Module) -> list[str]:
    """Patterns of a mixture's linear layers that stay in 16 bit: the shared expert's gates. Each is
    one row, and no engine has them in another format."""
    gates = [name for name, _ in model.named_modules() if name.endswith(SHARED_GATE)]
    return [SHARED_GATES] if gates and experts_of(model) else []


def with_routers(quantization: JsonObject, model: torch.nn.Module) -> JsonObject:
    """A config of compressed-tensors that ignores routers. They stay in 16 bit: an error in them
    sends a token to other experts. Here they are no linear layers; in vLLM they are, so that the
    config has to name them."""
    routers = [f"{name.rpartition('.')[0]}.gate" for name in experts_of(model)]
    if not routers:
        return quantization
    ignored = quantization.get("ignore")
    names = ignored if isinstance(ignored, list) else []
    return quantization | {"ignore": list(dict.fromkeys([*names, *routers]))}
