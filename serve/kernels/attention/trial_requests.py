"""Requests of random numbers, on which attention is timed and proven."""

import math
from dataclasses import dataclass

import torch

from serve.kernels.attention.launch import NewTokens
from serve.kernels.attention.shape import Cache, Shape

PAGE = 16
STALE = 64
"""Pages of earlier requests behind those of a request, as an engine's tables have them."""
MOST_BYTES = 512 * 2**20
"""Of the cache of keys and values."""
SHARE = 4
"""Of the free memory, a cache takes at most one part in so many."""
MOST_COPIES = 64


@dataclass(frozen=True)
class Pool:
    """A cache of keys and values that requests share."""

    shape: Shape
    kv_cache: torch.Tensor

    @staticmethod
    def made(shape: Shape, device: torch.device) -> "Pool":
        """Raises where there is no memory for it."""
        free, _ = torch.cuda.mem_get_info(device)
        size = min(MOST_BYTES, free // SHARE)
        pages = size // (PAGE * shape.token_bytes)
        kv_cache = torch.empty(
            (pages, 2, PAGE, shape.key_heads, shape.width), dtype=shape.dtype, device=device
        ).normal_()
        return Pool(shape, kv_cache)

    @property
    def cache(self) -> Cache:
        return Cache.of(self.kv_cache, self.shape.width)

    def holds(self, requests: int, context: int) -> bool:
        return requests * math.ceil(context / PAGE) <= int(self.kv_cache.shape[0])

    def copies(self, requests: int, context: int) -> list[NewTokens]:
        """Requests of that many tokens each, on places of their own as far as there are any."""
        pages = requests * math.ceil(context / PAGE)
        count = max(1, min(MOST_COPIES, self.kv_cache.shape[0] // pages))
        most, device = self.kv_cache.shape[0], self.kv_cache.device
        order = torch.randperm(most, device=device)[: count * pages].reshape(count, requests, -1)
        stale = torch.randint(most, (count, requests, STALE), device=device)
        tables = torch.cat([order, stale], dim=2).int()
        return [self._requests(table, context) for table in tables]

    def _requests(self, table: torch.Tensor, context: int) -> NewTokens:
        shape, device, (requests, _) = self.shape, table.device, table.shape
        last = context - 1
        columns = (shape.heads + 2 * shape.key_heads) * shape.width
        qkv = torch.randn(requests, columns, device=device).to(shape.dtype)
        heads = qkv.view(requests, -1, shape.width)
        queries, keys, values = heads.split([shape.heads, shape.key_heads, shape.key_heads], dim=1)
        slots = table[:, last // PAGE].long() * PAGE + last % PAGE
        lengths = torch.full((requests,), context, dtype=torch.int32, device=device)
        return NewTokens(queries, keys, values, slots, lengths, table)
