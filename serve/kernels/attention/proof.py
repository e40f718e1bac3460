"""Proves our attention against float64 before it is used."""

import math

import torch

from serve.kernels.attention.launch import NewTokens, Rope, decode
from serve.kernels.attention.shape import Cache, Shape
from serve.kernels.attention.trial_requests import PAGE, STALE
from serve.kernels.products.product import Options, Unusable

LENGTHS = (1, 2, 17, 300, 0, 1025)
"""Tokens of the requests; one place has no request."""
LONG = 4500
"""Of one more, where nothing is rotated: not every model has so many positions. With small tiles
it has the most parts that a request can have."""
TOLERANCE = 0.02
"""Of the largest number of the result. bfloat16 loses up to 0.004 of a number, twice."""


def check(shape: Shape, options: Options, device: torch.device, rope: Rope | None = None) -> None:
    """Raises Unusable where a kernel is wrong. It runs twice: the second one must find its counters
    as the first one did."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device=device).to(shape.dtype)

    here = LENGTHS if rope is not None else (*LENGTHS, LONG)
    counts = [math.ceil(length / PAGE) for length in here]
    requests, pages = len(here), sum(counts)
    kv_cache = random(pages, 2, PAGE, shape.key_heads, shape.width)
    cache = Cache.of(kv_cache, shape.width)
    size = (requests, max(counts) + STALE)
    table = torch.randint(pages, size, generator=generator, device=device).int()
    order = torch.randperm(pages, generator=generator, device=device).int()
    for row, its_own in zip(table, order.split(counts), strict=True):
        row[: len(its_own)] = its_own
    lengths = torch.tensor(here, dtype=torch.int32, device=device)
    last = (lengths.long() - 1).clamp(min=0)
    rows = torch.arange(requests, device=device)
    slots = table[rows, last // PAGE].long() * PAGE + last % PAGE
    slots = torch.where(lengths > 0, slots, -1)
    new = NewTokens(
        random(requests, shape.heads, shape.width),
        random(requests, shape.key_heads, shape.width),
        random(requests, shape.key_heads, shape.width),
        slots, lengths, table,
    )  # fmt: skip
    scale = shape.width**-0.5
    outs = [torch.full_like(new.queries, float("nan")) for _ in range(2)]
    for out in outs:
        decode(shape, new, cache, out, scale, options, rope)
    queries = prepared(new.queries, last, rope, is_key=False)
    keys = prepared(new.keys, last, rope, is_key=True)
    # The kernel has written the new tokens: the reference finds all tokens in the cache.
    for request, length in enumerate(here):
        right = _attention(shape, queries[request], cache, table[request], length, scale)
        for out in outs:
            error = (out[request].double() - right).abs().max().item()
            if not error <= TOLERANCE * max(right.abs().max().item(), 1e-9) + 1e-9:
                raise Unusable(f"{dict(options)}: wrong by {error:.2g} with {length} tokens")
        if length and not _is_kept(new, keys, cache, request):
            raise Unusable(f"{dict(options)}: loses the new token of {length}")


def _attention(
    shape: Shape,
    queries: torch.Tensor,
    cache: Cache,
    table: torch.Tensor,
    length: int,
    scale: float,
) -> torch.Tensor:
    """Of one request, in float64. No copy for each head of queries: engines that start may share
    a GPU's memory."""
    token = torch.arange(length, device=queries.device)
    places = table[token // cache.page].long(), token % cache.page
    grouped = queries.view(shape.key_heads, shape.group, shape.width)
    scores = torch.einsum("kgw,tkw->kgt", grouped, cache.keys[places].double()) * scale
    found = torch.einsum("kgt,tkw->kgw", scores.softmax(-1), cache.values[places].double())
    return found.reshape(shape.heads, shape.width)


def prepared(
    heads: torch.Tensor, positions: torch.Tensor, rope: Rope | None, is_key: bool
) -> torch.Tensor:
    """Heads [tokens, heads, width] in float64, normalized and rotated."""
    x = heads.double()
    if rope is None:
        return x
    weight = rope.k_weight if is_key else rope.q_weight
    if weight is not None:
        x = x * (x.square().mean(-1, keepdim=True) + rope.epsilon).rsqrt() * weight.double()
    cosine, sine = rope.rotations[positions].double()[:, None].chunk(2, dim=-1)
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


def _is_kept(new: NewTokens, keys: torch.Tensor, cache: Cache, request: int) -> bool:
    """Whether the cache has the values, and the keys but for their rounding."""
    slot = int(new.slots[request])
    place = slot // cache.page, slot % cache.page
    error = (cache.keys[place].double() - keys[request]).abs().max()
    has_keys = float(error) <= TOLERANCE * float(keys[request].abs().max())
    return has_keys and torch.equal(cache.values[place], new.values[request])
