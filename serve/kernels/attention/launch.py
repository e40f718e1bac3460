"""Launches the kernels of attention."""

import math
import threading
from dataclasses import dataclass

import torch

from serve.kernels.attention.shape import Cache, Shape
from serve.kernels.products.launch import INTERPRETED, options_of, power_of_two
from serve.kernels.products.product import Options

ROWS = 16
"""Of the tensor cores' smallest product: the heads of a group are padded to it."""
JOINED = 4096
"""Numbers that a warp keeps when it joins parts: 128 in each thread."""
STORED = 16
"""Tokens of a program that writes them into the cache."""
ROTATED, ROTATING_WARPS = 8, 2
"""Heads of a program that rotates them, and its warps."""


@dataclass(frozen=True)
class Rope:
    """What is done to new queries and keys before attention."""

    rotations: torch.Tensor
    """Cosines and sines by position: [positions, width]."""
    q_weight: torch.Tensor | None = None
    """Of the norm of queries; None where there is none."""
    k_weight: torch.Tensor | None = None
    epsilon: float = 0.0


@dataclass(frozen=True)
class NewTokens:
    """One new token of each request: heads of its queries, keys and values, [requests, heads,
    width], whose last two dimensions are contiguous."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor
    """Their places in the cache; -1 for none."""
    lengths: torch.Tensor
    """Tokens of each request with the new one; 0 where there is no request."""
    table: torch.Tensor
    """Pages of each request."""


@dataclass(frozen=True)
class Workspace:
    """Memory that the programs of a request share. Kernels of a stream run one after another, so
    all layers use the same."""

    parts: torch.Tensor
    counters: torch.Tensor
    """Zero between kernels."""


_WORKSPACES: dict[torch.device, list[Workspace]] = {}
"""The last one of a device is the largest. Captured graphs hold the addresses of all of them, so
none is ever freed."""
_GROWING = threading.Lock()
"""Several threads prove kernels at once."""


def reserve(shape: Shape, requests: int, split: int, device: torch.device) -> Workspace:
    """A workspace for so many requests whose contexts are split. Make the largest one before any
    graph is captured: memory of a graph is not zero when another graph runs."""
    groups = requests * shape.key_heads
    floats = groups * split * shape.group * (shape.width + 2)
    with _GROWING:
        made = _WORKSPACES.setdefault(device, [])
        last = made[-1] if made else None
        if last is None or last.parts.numel() < floats or last.counters.numel() < groups:
            before = (0, 0) if last is None else (last.parts.numel(), last.counters.numel())
            made.append(
                Workspace(
                    torch.empty(max(floats, before[0]), dtype=torch.float32, device=device),
                    torch.zeros(max(groups, before[1]), dtype=torch.int32, device=device),
                )
            )
        return made[-1]


def decode_options(
    tokens: int, split: int, warps: int, stages: int, eager: int = 1, pdl: int = 0
) -> Options:
    """Tokens of a tile; the most parts of a request, and how many of them begin before its length
    is known; warps and stages; whether the kernel begins before the one in front has ended."""
    return options_of(
        TOKENS=tokens, SPLIT=split, EAGER=eager, PDL=pdl, num_warps=warps, num_stages=stages
    )


DECODE_OPTIONS = {name for name, _ in decode_options(16, 1, 1, 2)}


def decode(
    shape: Shape,
    new: NewTokens,
    cache: Cache,
    out: torch.Tensor,
    scale: float,
    options: Options,
    rope: Rope | None = None,
) -> None:
    """Attends from the new token of each request to all of its tokens, and keeps the new one's keys
    and values in the cache. With `rope`, queries and keys are not rotated yet."""
    from serve.kernels.attention.triton_kernels.decode import decode_attention_kernel

    arguments: dict[str, int | bool] = dict(options)
    if INTERPRETED:
        arguments["PDL"] = 0  # the interpreter has no launches
    else:
        arguments["launch_pdl"] = bool(arguments["PDL"])
    requests, split, eager = new.lengths.shape[0], arguments.pop("SPLIT"), arguments.pop("EAGER")
    members = power_of_two(shape.group)
    at_once = max(1, JOINED * arguments["num_warps"] // (members * shape.width))
    work = reserve(shape, requests, split, out.device)
    queries = new.queries
    q_weight = queries if rope is None or rope.q_weight is None else rope.q_weight
    k_weight = queries if rope is None or rope.k_weight is None else rope.k_weight
    decode_attention_kernel[(shape.key_heads, requests, split)](
        queries, new.keys, new.values, cache.keys, cache.values, new.table, new.lengths, new.slots,
        out, work.parts, work.counters, q_weight, k_weight,
        queries if rope is None else rope.rotations,
        scale * math.log2(math.e), 0.0 if rope is None else rope.epsilon,
        queries.stride(0), new.keys.stride(0), new.values.stride(0), *cache.strides,
        new.table.stride(0), out.stride(0), split, eager,
        PAGE=cache.page, GROUP=shape.group, MEMBERS=members, ROWS=ROWS,
        WIDTH=shape.width, JOINS=split > 1, AT_ONCE=at_once if split > 1 else 1,
        NORM=rope is not None and rope.q_weight is not None, ROPE=rope is not None,
        INTERPRETED=INTERPRETED, **arguments,
    )  # fmt: skip


def store(keys: torch.Tensor, values: torch.Tensor, cache: Cache, slots: torch.Tensor) -> None:
    """Writes keys and values [tokens, heads, width] into the cache; slot -1 is not written. There
    may be fewer slots than tokens."""
    from serve.kernels.attention.triton_kernels.store import store_attention_kernel

    tokens, (_, heads, width) = slots.shape[0], keys.shape
    store_attention_kernel[(math.ceil(tokens / STORED), heads)](
        keys, values, cache.keys, cache.values, slots, tokens, keys.stride(0), values.stride(0),
        *cache.strides, PAGE=cache.page, HEADS=heads, WIDTH=width, TOKENS=STORED, num_warps=4,
    )  # fmt: skip


def rotate(shape: Shape, qkv: torch.Tensor, positions: torch.Tensor, rope: Rope) -> None:
    """Normalizes and rotates the queries and keys of [tokens, queries + keys + values] in place."""
    from serve.kernels.attention.triton_kernels.rope import rope_kernel

    heads = shape.heads + shape.key_heads
    has_norm = rope.q_weight is not None
    rope_kernel[(qkv.shape[0], math.ceil(heads / ROTATED))](
        qkv, positions, rope.q_weight if has_norm else qkv, rope.k_weight if has_norm else qkv,
        rope.rotations, rope.epsilon, qkv.stride(0), HEADS=shape.heads, KEYS=shape.key_heads,
        ROWS=ROTATED, WIDTH=shape.width, NORM=has_norm, num_warps=ROTATING_WARPS,
    )  # fmt: skip
