"""Which layer comes next: its kernel's first weights are requested into the cache by the layer in
front of it, where the engine was asked for that (`engine.kernels.prefetch`).

vLLM loads all layers before it compiles or captures anything, so addresses are fixed by then. The
op looks up what to request by the address of its own weights. So neither its schema nor compiled
graphs change, in which equal layers are one. A captured CUDA graph holds the address. It reads the
same tensor as weights of the next layer, so the address is valid as long as the graph is.
"""

import logging
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from serve.kernels import op
from serve.kernels.op import Planned
from serve.kernels.products.product import Inputs
from serve.kernels.products.upcoming import Upcoming, upcoming_of

logger = logging.getLogger("vllm.quantline")
ORDER = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
"""Linear layers of a decoder layer in the order in which they run, as vLLM names them in Llama,
Qwen, Mistral and Gemma. Others are not linked: between their products may be experts, whose weights
would displace what was requested."""
NAME = re.compile(r"(?P<begin>(?:.*\.)?layers\.)(?P<number>\d+)\.(?P<part>.+)")


@dataclass(frozen=True)
class LinkedLayer:
    """A loaded layer. It keeps no tensor alive."""

    key: str
    """Of the op."""
    planned: Planned
    references: tuple[weakref.ref[torch.Tensor], ...]
    """To the op's tensors."""
    columns: int
    dtype: torch.dtype
    windows: dict[int, Upcoming | None] = field(default_factory=dict)
    """By number of tokens."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Empty where the layer is gone, or has got other weights."""
        tensors = [reference() for reference in self.references]
        alive = [tensor for tensor in tensors if tensor is not None]
        return alive if len(alive) == len(tensors) else []

    def upcoming(self, tokens: int) -> Upcoming | None:
        """What the layer before requests of this one."""
        if not (tensors := self.tensors):
            return None
        if tokens not in self.windows:
            reads = self.planned.reads(tensors, tokens)
            self.windows[tokens] = None if reads is None else upcoming_of(reads)
        return self.windows[tokens]

    @property
    def tokens(self) -> list[int]:
        """The most tokens of each product that requests weights of the next layer."""
        ends, calls = self.planned.plan.ends, self.planned.calls
        return [end for end, call in zip(ends, calls, strict=False) if call.product.takes_upcoming]


_LOADED: dict[str, LinkedLayer] = {}
"""The last layer of each name."""
_PROVEN: dict[tuple[str, str], bool] = {}
"""Whether results stay the same, for the keys of two layers."""


def predecessor(name: str) -> str | None:
    """The layer that runs before another one; None for the first, and for unknown names."""
    match = NAME.fullmatch(name)
    if match is None or match["part"] not in ORDER:
        return None
    place, number = ORDER.index(match["part"]) - 1, int(match["number"])
    number -= place < 0
    return f"{match['begin']}{number}.{ORDER[place]}" if number >= 0 else None


def link(
    name: str,
    key: str,
    planned: Planned,
    tensors: Sequence[torch.Tensor],
    columns: int,
    dtype: torch.dtype,
) -> None:
    """Has the layer before request weights of this one. Call it for each layer as it is loaded.
    Never raises: a failure costs speed only."""
    try:
        references = tuple(weakref.ref(tensor) for tensor in tensors)
        layer = _LOADED[name] = LinkedLayer(key, planned, references, columns, dtype)
        before = _LOADED.get(predecessor(name) or "")
        if before is not None and before.tensors and _is_proven(before, layer):
            most = max(before.tokens)
            op.put_upcoming(before.tensors[0], partial(_window, layer, most))
    except Exception as error:
        logger.warning("quantline: %s is not requested by the layer before: %s", name, error)
        logger.debug("quantline: %s", name, exc_info=True)


def _window(layer: LinkedLayer, most: int, tokens: int) -> Upcoming | None:
    """For more tokens nothing is requested, nor kept for each number of them."""
    return layer.upcoming(tokens) if tokens <= most else None


def _is_proven(before: LinkedLayer, layer: LinkedLayer) -> bool:
    """Whether results are the same with requests as without. It also compiles the kernels, which
    cannot be done while a CUDA graph is captured."""
    keys = (before.key, layer.key)
    if keys not in _PROVEN:
        with torch.no_grad():
            windows = {tokens: layer.upcoming(tokens) for tokens in before.tokens}
            _PROVEN[keys] = any(windows.values()) and all(
                _is_unchanged(before, tokens, window) for tokens, window in windows.items()
            )
        logger.info("quantline: %s requests weights of %s: %s", *keys, _PROVEN[keys])
    return _PROVEN[keys]


def _is_unchanged(before: LinkedLayer, tokens: int, window: Upcoming | None) -> bool:
    tensors = before.tensors
    generator = torch.Generator(device=tensors[0].device).manual_seed(tokens)
    x = torch.randn((tokens, before.columns), generator=generator, device=tensors[0].device)
    plain = x.to(before.dtype)
    alone = before.planned.multiply(Inputs(plain), tensors)
    requesting = before.planned.multiply(Inputs(plain, upcoming=window), tensors)
    return bool(torch.equal(alone, requesting))
