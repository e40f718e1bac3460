"""Loads a layer: prepares products, plans them, proves them, and puts their tensors on the layer.

The first layer of a shape has all candidates measured, or read from the store; the others prepare
only what was chosen. The layer itself is changed at the very end: until then any failure leaves it
as vLLM loaded it, and vLLM's own kernel runs it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from conf.schema.kernels import SPARSE, W4AFP8, WEIGHT_ONLY
from serve.kernels import op, record
from serve.kernels.linear.planning import plan_layer
from serve.kernels.op import Planned
from serve.kernels.products.product import Product, Unusable, Weight
from serve.kernels.record import ALL, LayerKernels, TokenRange
from serve.kernels.room import keeps_second_layouts

logger = logging.getLogger("vllm.quantline")
PREFIX = "quantline_"
EIGHT_BIT = ("int8", "fp8")
"""Kinds of layers whose kernels read the weights as vLLM stores them, unless they are 2:4."""
Rounding = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Rounds activations [tokens, K]; gives them with their scales [tokens, 1]."""


@dataclass(frozen=True)
class LayerKind:
    """What the layers of one stored format have in common."""

    name: str
    """Such as int8, fp8 or w4a16."""
    products: tuple[Product, ...]
    own: str
    """The name of the product that is vLLM's own choice."""
    rounded: torch.dtype | None
    """The type that activations are rounded to; None where they stay as they are."""
    fallback: str = ""
    """The kernel that runs a layer which is left to vLLM, where that is not `own`."""


@dataclass(frozen=True)
class LoadedLayer:
    """What a forward needs of a layer. Constants and names only: torch.compile traces them."""

    key: str
    rows: int
    tensors: tuple[str, ...]
    """Names of the layer's parameters, in the order of the op's tensors."""
    passes_plain: bool
    passes_rounded: bool
    scales_after: bool = False
    """The scales of rounded activations are applied in traced PyTorch, which Inductor fuses with
    what comes next."""


def load_or_leave(
    layer: torch.nn.Module,
    kind: LayerKind,
    weight_of: Callable[[], Weight],
    stored_names: Sequence[str],
    dtype: torch.dtype,
) -> LoadedLayer | None:
    """The loaded layer; None where it stays with vLLM, which is logged with the reason and the
    kernel that runs it. Never raises: an engine that starts without us must start with us."""
    name = str(getattr(layer, "prefix", ""))
    weight: Weight | None = None
    try:
        weight = weight_of()
        return _load(layer, name, kind, weight, stored_names, dtype)
    except Unusable as reason:
        _leave(name, kind, weight, str(reason))
    except Exception as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0][:300]
        logger.warning("quantline: %s is left to vLLM: %s", name or kind.name, first_line)
        logger.debug("quantline: %s", name, exc_info=True)
        _leave(name, kind, weight, first_line)
    return None


def is_loaded(loaded: LoadedLayer | None, parameter: torch.Tensor) -> bool:
    """Whether a layer was loaded before, and vLLM has not put new weights on it since."""
    return loaded is not None and parameter.numel() == 0


def _load(
    layer: torch.nn.Module,
    name: str,
    kind: LayerKind,
    weight: Weight,
    stored_names: Sequence[str],
    dtype: torch.dtype,
) -> LoadedLayer:
    key = base_key(kind.name, weight, dtype, is_head(layer))
    planned_layer = plan_layer(
        key, weight, kind.products, kind.own, dtype, kind.rounded,
        keeps_second_layouts(_family(kind, weight), weight.codes.device), is_head(layer),
    )  # fmt: skip
    stored = [getattr(layer, stored_name) for stored_name in stored_names]
    extra = max(0, stored_bytes(planned_layer.tensors) - stored_bytes(stored))
    planned = planned_layer.planned
    kernels = LayerKernels(
        kind_name(kind.name, weight), weight.rows, weight.columns, planned.plan.ranges,
        planned_layer.refused, extra,
    )  # fmt: skip
    record.note(kernels, name)
    if not is_head(layer):  # which no compiled graph has
        _split_ranges(planned)
    reads = {product.reads_rounded for product in planned.products}
    names = replace_parameters(layer, planned_layer.tensors, stored_names)
    # Without their scales, sums of rounded activations may exceed float16.
    scales_after = planned.scales_after and dtype == torch.bfloat16
    return LoadedLayer(
        planned_layer.op_key, weight.rows, names, False in reads, True in reads, scales_after
    )


def _family(kind: LayerKind, weight: Weight) -> str | None:
    """The family that copies such weights; None where there is none."""
    if weight.sparse:
        return SPARSE
    if kind.name == W4AFP8:
        return W4AFP8
    return None if kind.name in EIGHT_BIT else WEIGHT_ONLY


def _split_ranges(planned: Planned) -> None:
    """A failure costs speed, not the layer: also that of the import, which needs vLLM's passes."""
    try:
        from serve.kernels.linear.ranges import split_ranges

        split_ranges(planned)
    except Exception as error:
        logger.warning("quantline: one graph for all numbers of tokens: %s", error)


def _leave(name: str, kind: LayerKind, weight: Weight | None, reason: str) -> None:
    try:
        rows, columns = (weight.rows, weight.columns) if weight is not None else (0, 0)
        sort = kind_name(kind.name, weight) if weight is not None else kind.name
        ran = (TokenRange(None, kind.fallback or kind.own),)
        record.note(LayerKernels(sort, rows, columns, ran, refused={ALL: reason}), name)
    except Exception as error:
        logger.warning("quantline: %s is left to vLLM: %s (%s)", name, reason, error)


def kind_name(name: str, weight: Weight) -> str:
    """The stored format, with `sparse` where weights are 2:4."""
    return f"{name} sparse" if weight.sparse else name


def is_head(layer: torch.nn.Module) -> bool:
    """Whether it is the output head: vLLM's class of it is the one of embeddings."""
    return hasattr(layer, "org_vocab_size")


def base_key(name: str, weight: Weight, dtype: torch.dtype, head: bool = False) -> str:
    """What is measured once for all layers: the format, the shape on this GPU, and details that
    products depend on. The same for all layers of a kind, as vLLM compiles equal layers once."""
    parts = [name, f"{weight.rows}x{weight.columns}"]
    parts += [f"group{weight.group_size}"] if weight.group_size is not None else []
    parts += ["zeros"] if weight.zeros is not None else []
    parts += ["sparse"] if weight.sparse else []
    parts += ["float16"] if dtype == torch.float16 else []
    parts += ["head"] if head else []
    return "/".join(parts)


def replace_parameters(
    layer: torch.nn.Module, tensors: Sequence[torch.Tensor], stored_names: Sequence[str]
) -> tuple[str, ...]:
    """Puts the tensors on the layer as parameters, so that vLLM counts, offloads and wakes them,
    and empties those that were loaded: a product that reads one of them holds it already. Equal
    tensors become one parameter."""
    names: list[str] = []
    by_place: dict[tuple[int, torch.Size, torch.dtype], str] = {}
    for tensor in tensors:
        place = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if tensor.numel() == 0 or place not in by_place:
            by_place[place] = f"{PREFIX}{len(names)}"
            parameter = torch.nn.Parameter(tensor, requires_grad=False)
            layer.register_parameter(by_place[place], parameter)
        names.append(by_place[place])
    for name in stored_names:
        stored = getattr(layer, name, None)
        if stored is not None:
            empty = torch.empty(0, dtype=stored.dtype, device=stored.device)
            delattr(layer, name)
            layer.register_parameter(name, torch.nn.Parameter(empty, requires_grad=False))
    return tuple(names)


def stored_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of the tensors; what shares its memory counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def multiply(
    layer: torch.nn.Module, loaded: LoadedLayer, x: torch.Tensor, rounding: Rounding | None
) -> torch.Tensor:
    """A forward, as vLLM traces it. The choice by the number of tokens is inside of the op.

    Where only rounded activations are read, the op gets an empty tensor for the plain ones, which
    has their type and number of tokens: the kernel in front need not write them."""
    flat = x.reshape(-1, x.shape[-1])
    rounded = scales = None
    if loaded.passes_rounded and rounding is not None:
        rounded, scales = rounding(flat)
    plain = flat.contiguous() if loaded.passes_plain else flat.new_empty((flat.shape[0], 0))
    tensors = [getattr(layer, name) for name in loaded.tensors]
    after = loaded.scales_after and scales is not None and torch.compiler.is_compiling()
    out = op.linear(plain, rounded, scales, tensors, loaded.key, loaded.rows, after)
    if after and scales is not None:
        out = (out.float() * scales).to(out.dtype)
    return out.reshape(*x.shape[:-1], loaded.rows)
