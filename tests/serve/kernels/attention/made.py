"""Requests whose attention is known: made at random, and computed in float64."""

from dataclasses import dataclass, replace

import torch

from serve.kernels.attention.launch import NewTokens, Rope, decode
from serve.kernels.attention.proof import prepared
from serve.kernels.attention.shape import Cache, Shape
from serve.kernels.products.product import Options

EPSILON = 1e-6
PAGES_OF_REQUEST = 12


@dataclass(frozen=True)
class Made:
    """New tokens of requests, and the cache of their older ones."""

    shape: Shape
    new: NewTokens
    cache: Cache
    kv_cache: torch.Tensor
    """As vLLM has it."""
    rope: Rope | None

    @property
    def scale(self) -> float:
        return self.shape.width**-0.5


def made(
    shape: Shape,
    lengths: list[int],
    page: int = 16,
    rope: str = "",
    layout: int = 5,
    device: str = "cpu",
) -> Made:
    """`rope` is "", "rope" or "norm", which rotates, too. `layout` is the number of dimensions of
    vLLM's cache. Places that no token has hold NaN."""
    torch.manual_seed(len(lengths))
    requests, width, keys = len(lengths), shape.width, shape.key_heads
    pages = requests * PAGES_OF_REQUEST
    size = (pages, 2, page, keys, width) if layout == 5 else (pages, keys, page, 2 * width)
    kv_cache = torch.full(size, float("nan"), dtype=shape.dtype)
    cache = Cache.of(kv_cache, width)
    table = torch.randperm(pages).reshape(requests, PAGES_OF_REQUEST).int()
    slots = torch.full((requests,), -1)
    for request, length in enumerate(lengths):
        for token in range(length - 1):
            places = int(table[request, token // page]), token % page
            cache.keys[places] = torch.randn(keys, width).to(shape.dtype)
            cache.values[places] = torch.randn(keys, width).to(shape.dtype)
        if length:
            last = length - 1
            slots[request] = int(table[request, last // page]) * page + last % page
    columns = (shape.heads + 2 * keys) * width
    qkv = torch.randn(requests, columns).to(shape.dtype)
    queries, new_keys, values = qkv.split([shape.heads * width, keys * width, keys * width], dim=1)
    new = NewTokens(
        queries.view(requests, shape.heads, width), new_keys.view(requests, keys, width),
        values.view(requests, keys, width), slots, torch.tensor(lengths, dtype=torch.int32), table,
    )  # fmt: skip
    made_here = Made(shape, new, cache, kv_cache, rope_of(shape, rope))
    return made_here if device == "cpu" else moved(made_here, device)


def moved(one: Made, device: str) -> Made:
    """The same on a GPU."""
    new = NewTokens(**{name: tensor.to(device) for name, tensor in vars(one.new).items()})
    kv_cache = one.kv_cache.to(device)
    rope = one.rope
    if rope is not None:
        tensors = {k: v.to(device) for k, v in vars(rope).items() if isinstance(v, torch.Tensor)}
        rope = replace(rope, **tensors)
    return replace(
        one, new=new, kv_cache=kv_cache, cache=Cache.of(kv_cache, one.shape.width), rope=rope
    )


def rope_of(shape: Shape, kind: str, positions: int = 1024) -> Rope | None:
    if not kind:
        return None
    half = shape.width // 2
    angles = torch.arange(positions)[:, None] * (10000.0 ** -(torch.arange(half) / half))[None, :]
    rotations = torch.cat([angles.cos(), angles.sin()], dim=1).to(shape.dtype)
    if kind == "rope":
        return Rope(rotations)
    weights = [(torch.rand(shape.width) + 0.5).to(shape.dtype) for _ in range(2)]
    return Rope(rotations, *weights, EPSILON)


def attention_error(one: Made, options: Options) -> float:
    """How far the results of two kernels in a row are from float64; infinite where one changes
    anything else, or not what it should. The second one must find the counters at zero."""
    before = [one.cache.keys.clone(), one.cache.values.clone()]
    right, keys = expected(one)
    worst = 0.0
    for _ in range(2):
        out = torch.full_like(one.new.queries, float("nan")).contiguous()
        decode(one.shape, one.new, one.cache, out, one.scale, options, one.rope)
        error = (out.double().cpu() - right).abs().max().item()
        worst = max(worst, error if error == error else float("inf"))
    for stored, old, new in zip(
        (one.cache.keys, one.cache.values), before, (keys, one.new.values.cpu()), strict=True
    ):
        changed = stored.cpu().clone()
        for request, slot in enumerate(one.new.slots.tolist()):
            if slot >= 0:
                place = slot // one.cache.page, slot % one.cache.page
                far = (changed[place].double() - new[request].double()).abs().max().item()
                worst = max(worst, far if far == far else float("inf"))
                changed[place] = old.cpu()[place]
        if not torch.equal(changed.nan_to_num(-99.0), old.cpu().nan_to_num(-99.0)):
            return float("inf")
    return worst


def expected(one: Made) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in float64, zeros for a place without a request; and the rotated keys."""
    new, shape = one.new, one.shape
    lengths = new.lengths.tolist()
    positions = (new.lengths.long() - 1).clamp(min=0)
    queries = prepared(new.queries, positions, one.rope, is_key=False).cpu()
    keys = prepared(new.keys, positions, one.rope, is_key=True).cpu()
    result = torch.zeros(queries.shape, dtype=torch.float64)
    for request, length in enumerate(lengths):
        if not length:
            continue
        older = torch.arange(length - 1)
        pages = new.table.cpu()[request][older // one.cache.page].long()
        places = pages, older % one.cache.page
        all_keys = torch.cat([one.cache.keys.cpu()[places].double(), keys[request : request + 1]])
        values = one.cache.values.cpu()[places].double()
        all_values = torch.cat([values, new.values.cpu()[request : request + 1].double()])
        for head in range(shape.heads):
            scores = all_keys[:, head // shape.group] @ queries[request, head] * one.scale
            result[request, head] = scores.softmax(0) @ all_values[:, head // shape.group]
    return result, keys
