"""Queries and keys are normalized and rotated by one kernel; while decoding, by attention itself.

vLLM's models do it between the product of queries, keys and values and attention. Here it is one
op, quantline::rotate, which changes the result of the product in place. In a step that decodes, the
op leaves it to attention.
"""

import ast
import functools
import hashlib
import inspect
import logging
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from conf.schema.kernels import ATTENTION
from serve.kernels.attention import rotate_op
from serve.kernels.attention.conditions import can_normalize, can_rotate
from serve.kernels.attention.deferring import Modules
from serve.kernels.settings import add_to_graph_key, current_settings

logger = logging.getLogger("vllm.quantline")
MODELS = "vllm.model_executor.models"
CLASSES = {
    f"{MODELS}.qwen3": ("Qwen3Attention", "0aa4c3ed04171036"),
    f"{MODELS}.qwen3_moe": ("Qwen3MoeAttention", "0aa4c3ed04171036"),
    f"{MODELS}.qwen2": ("Qwen2Attention", "5745fabd8a52fd02"),
    f"{MODELS}.llama": ("LlamaAttention", "896bab090b0422b7"),
}
"""Classes of vLLM that project, may normalize, rotate, attend and project, with the hash of their
forward, by module. A class whose forward has another hash is left to vLLM."""
ROTATES = "_quantline_rotates"
"""False on a class that we have changed, true on a layer whose queries and keys our op rotates."""


def hook(module: ModuleType) -> None:
    """Has layers of a class of vLLM rotate by our op, in engines that ask for our attention, where
    their modules fit. A vLLM with another class runs as it would without us."""
    name, known = CLASSES[module.__name__]
    try:
        attention: Any = getattr(module, name)
        if hasattr(attention, ROTATES):
            return
        found = forward_hash(inspect.getsource(attention.forward))
        if found != known:
            logger.info("quantline: %s rotates as vLLM does: its forward is new (%s)", name, found)
            return
        rotate_op.register()
        _wrap(attention)
    except Exception as error:
        logger.warning("quantline: %s rotates as vLLM does: %s", name, error)


def forward_hash(source: str) -> str:
    """A hash of what a method does: its statements, without comments and its documentation."""
    (defined,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(defined, ast.FunctionDef)
    names = [argument.arg for argument in defined.args.args]
    body, first = defined.body, defined.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        body = body[1:]
    text = "\n".join([*names, *map(ast.unparse, body)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _wrap(attention: Any) -> None:
    make: Callable[..., None] = attention.__init__
    run: Callable[..., torch.Tensor] = attention.forward
    setattr(attention, ROTATES, False)  # a layer that rotates has its own

    @functools.wraps(make)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if type(self) is attention and ATTENTION in current_settings().families:
            try:
                _take_over(self)
            except Exception as error:  # an engine that starts without us must start with us
                logger.warning("quantline: a layer rotates as vLLM does: %s", error)

    @functools.wraps(run)
    def forward(self: Any, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        if not getattr(self, ROTATES):
            return run(self, positions, hidden_states)
        qkv, _ = self.qkv_proj(hidden_states)
        has_norm = hasattr(self, "q_norm")
        torch.ops.quantline.rotate(
            qkv, positions, self.rotary_emb.cos_sin_cache,
            self.q_norm.weight if has_norm else None, self.k_norm.weight if has_norm else None,
            self.q_norm.variance_epsilon if has_norm else 0.0, self.num_heads, self.num_kv_heads,
        )  # fmt: skip
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        output, _ = self.o_proj(self.attn(q, k, v))
        return output

    attention.__init__, attention.forward = initialize, forward


def _take_over(layer: Any) -> None:
    """Where a layer's attention is ours, and our kernel rotates as its modules do."""
    from serve.kernels.attention.impl import QuantlineAttentionImpl

    impl, width = getattr(layer.attn, "impl", None), layer.head_dim
    if not isinstance(impl, QuantlineAttentionImpl) or not can_rotate(layer.rotary_emb, width):
        return
    norms = [getattr(layer, name, None) for name in ("q_norm", "k_norm")]
    if any(norm is not None and not can_normalize(norm, width) for norm in norms):
        return
    if (norms[0] is None) != (norms[1] is None) or _epsilons(norms) > 1:
        return
    add_to_graph_key("rotates")
    impl.modules = Modules(layer.rotary_emb, *norms)
    setattr(layer, ROTATES, True)


def _epsilons(norms: list[Any]) -> int:
    return len({norm.variance_epsilon for norm in norms if norm is not None})
