"""Which modules of a model compute with the kernels, while calibration text passes through it.

A module is replaced only if it is built as transformers builds it and gives the same output on a
few random tokens. Any other is left as it is.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Protocol

import torch
from compressed_tensors.offload.cache import OffloadCache
from compressed_tensors.utils import patch_attr
from llmcompressor.modifiers.utils.hooks import HooksMixin
from loguru import logger

from quantize.calibrate.solver.products import FLOAT_16

ROTARY = "apply_rotary_pos_emb"
GATED, ACTIVATION = ("gate_proj", "up_proj", "down_proj"), "act_fn"
PROBE_TOKENS = 4
TOLERANCE = 2**-7  # one bit of bfloat16
Forward = Callable[..., Any]


class Kernels(Protocol):
    """The functions of `kernels`, or others in tests."""

    def rms_norm(
        self, inputs: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor: ...

    def rotate(
        self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor: ...

    def silu_product(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor: ...


@contextlib.contextmanager
def fused_elementwise(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Norms, rotary positions and gated activations as one kernel each, on a GPU."""
    if device.type != "cuda":
        yield
        return
    with replaced(model, device, triton_kernels()):
        yield


def triton_kernels() -> Kernels:
    """Imported late: Triton is not installed where there is no GPU."""
    from quantize.calibrate.elementwise import kernels

    return kernels


@contextlib.contextmanager
def replaced(model: torch.nn.Module, device: torch.device, kernels: Kernels) -> Iterator[None]:
    """The model with every module replaced for which that changes nothing but rounding."""
    with torch.no_grad(), HooksMixin.disable_hooks():
        forwards = list(_fused_forwards(model, device, kernels))
        rotaries = list(_fused_rotaries(model, device, kernels))
    with contextlib.ExitStack() as stack:
        for module, forward in forwards:
            if _is_offloaded(module):  # compressed-tensors wraps its own forward
                stack.enter_context(patch_attr(module, "_original_forward_func", forward))
            else:
                stack.enter_context(patch_attr(module, "forward", forward.__get__(module)))
        for code, rotary in rotaries:
            stack.enter_context(patch_attr(code, ROTARY, rotary))
        yield


def _is_offloaded(module: torch.nn.Module) -> bool:
    return isinstance(module._parameters, OffloadCache)


def _fused_forwards(
    model: torch.nn.Module, device: torch.device, kernels: Kernels
) -> Iterator[tuple[torch.nn.Module, Forward]]:
    """Each module to replace, with its new forward as a function of the module and its input. The
    first of a class is tried for all."""
    fits: dict[type, bool] = {}
    for module in model.modules():
        forward, width = _fused_forward(module, kernels)
        if forward is None:
            continue
        kind = type(module)
        if kind not in fits:
            fits[kind] = _gives_the_same(module, forward, width, device)
        if fits[kind]:
            yield module, _called_as(kind.forward, forward)


def _called_as(original: Callable[..., Any], forward: Forward) -> Forward:
    """Takes its input by position or by the original's name for it, as AWQ repeats calls."""

    @functools.wraps(original)
    def called(module: torch.nn.Module, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        (values,) = (*inputs, *named.values())
        return forward(module, values)

    return called


def _fused_forward(module: torch.nn.Module, kernels: Kernels) -> tuple[Forward | None, int]:
    """A new forward, as a function of the module and its input, and the input's width."""
    names = {*module._parameters, *module._modules} - {ACTIVATION}
    if type(module).__name__.endswith("RMSNorm") and names == {"weight"}:
        epsilon = getattr(module, "variance_epsilon", None)
        if isinstance(epsilon, float):
            weight = _stored(module)["weight"]
            assert weight is not None
            return _norm_forward(kernels, epsilon), weight.shape[-1]
    if names == set(GATED) and hasattr(module, ACTIVATION):
        return _mlp_forward(kernels), int(getattr(module.gate_proj, "in_features", 0))
    return None, 0


def _norm_forward(kernels: Kernels, epsilon: float) -> Forward:
    def forward(module: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        assert isinstance(module.weight, torch.Tensor)
        return kernels.rms_norm(inputs, module.weight, epsilon)

    return forward


def _mlp_forward(kernels: Kernels) -> Forward:
    def forward(module: Any, inputs: torch.Tensor) -> Any:
        product = kernels.silu_product(module.gate_proj(inputs), module.up_proj(inputs))
        return module.down_proj(product)

    return forward


def _stored(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """The module's own parameters where they lie: to read a shape or type must not load them."""
    parameters: dict[str, torch.Tensor | None] = module._parameters
    if isinstance(parameters, OffloadCache):
        parameters = parameters.offloaded_values
    return parameters


def _types(module: torch.nn.Module) -> set[torch.dtype]:
    """The types that a module computes in. The scales and zero points of a recipe do not count."""
    return {
        values.dtype
        for part in module.modules()
        for name, values in _stored(part).items()
        if name in ("weight", "bias") and values is not None
    }


def _gives_the_same(
    module: torch.nn.Module, forward: Forward, width: int, device: torch.device
) -> bool:
    kinds = _types(module)
    if len(kinds) != 1 or not kinds <= set(FLOAT_16):
        return False
    inputs = torch.randn(1, PROBE_TOKENS, width, device=device).to(kinds.pop())
    try:
        return _is_close(forward(module, inputs), module(inputs), type(module).__name__)
    except Exception as error:  # another signature, or a kernel that cannot be compiled
        logger.warning(f"{type(module).__name__} is computed as before: {error}")
        return False


def _fused_rotaries(
    model: torch.nn.Module, device: torch.device, kernels: Kernels
) -> Iterator[tuple[ModuleType, Forward]]:
    """The files of transformers that hold a rotary function to replace, with the new one."""
    files = {type(module).__module__ for module in model.modules()}
    for name in sorted(files):
        code = sys.modules.get(name)
        own_rotary = getattr(code, ROTARY, None)
        if code is None or own_rotary is None:
            continue

        def rotary(
            q: torch.Tensor,
            k: torch.Tensor,
            cos: torch.Tensor,
            sin: torch.Tensor,
            *rest: Any,
            own_rotary: Forward = own_rotary,
            **named: Any,
        ) -> Any:
            if rest or named or cos.dim() != 3 or cos.shape[-1] != q.shape[-1]:
                return own_rotary(q, k, cos, sin, *rest, **named)
            return kernels.rotate(q, cos, sin), kernels.rotate(k, cos, sin)

        if _rotates_the_same(rotary, own_rotary, device):
            yield code, rotary


def _rotates_the_same(rotary: Forward, own_rotary: Forward, device: torch.device) -> bool:
    q, k = (
        torch.randn(2, PROBE_TOKENS, heads, 16, device=device).bfloat16().transpose(1, 2)
        for heads in (4, 2)
    )
    angles = torch.randn(1, PROBE_TOKENS, 16, device=device)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    try:
        pairs = zip(rotary(q, k, cos, sin), own_rotary(q, k, cos, sin), strict=True)
        return all(_is_close(fused, own, ROTARY) for fused, own in pairs)
    except Exception as error:  # another signature
        logger.warning(f"{ROTARY} is computed as before: {error}")
        return False


def _is_close(fused: torch.Tensor, own: torch.Tensor, name: str) -> bool:
    difference = (fused.float() - own.float()).norm() / own.float().norm().clamp_min(1e-30)
    is_close = fused.shape == own.shape and bool(difference <= TOLERANCE)
    if not is_close:
        logger.info(f"{name} is computed as before: the kernel differs by {float(difference):.2g}")
    return is_close
