"""What the kernels of attention have to know of a layer."""

from dataclasses import dataclass

import torch

WIDTHS = (64, 128, 256)
MOST_GROUP = 16
"""Heads of queries for each head of keys: the rows of one product of the tensor cores."""
TYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Shape:
    """The heads of a layer."""

    heads: int
    key_heads: int
    width: int
    """Numbers of a head."""
    dtype: torch.dtype

    @property
    def group(self) -> int:
        """Heads of queries for each head of keys."""
        return self.heads // self.key_heads

    @property
    def token_bytes(self) -> int:
        """Of the keys and values of a token."""
        return 2 * self.key_heads * self.width * int(self.dtype.itemsize)

    @property
    def refusal(self) -> str:
        """Why our kernels cannot run it; empty where they can."""
        if self.width not in WIDTHS:
            return f"heads have {self.width} numbers, not one of {', '.join(map(str, WIDTHS))}"
        if self.heads % self.key_heads or self.group > MOST_GROUP:
            return f"{self.heads} heads of queries and {self.key_heads} of keys do not fit"
        if self.dtype not in TYPES:
            return f"numbers are {self.dtype}, not bfloat16 or float16"
        return ""

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"attention {self.heads}/{self.key_heads}x{self.width} {kind}"


@dataclass(frozen=True)
class Cache:
    """The keys and values of a layer's past tokens: [pages, tokens of a page, heads, width]."""

    keys: torch.Tensor
    values: torch.Tensor

    @staticmethod
    def of(kv_cache: torch.Tensor, width: int) -> "Cache":
        """From vLLM's tensor: [pages, 2, tokens, heads, width], since vLLM 0.32 [pages, heads,
        tokens, 2 * width]."""
        if kv_cache.dim() == 5:
            return Cache(*kv_cache.unbind(1))
        return Cache(*kv_cache.transpose(1, 2).split(width, dim=-1))

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return int(self.keys.shape[1])

    @property
    def strides(self) -> tuple[int, int, int]:
        """Of pages, tokens and heads; keys and values have the same."""
        return self.keys.stride(0), self.keys.stride(1), self.keys.stride(2)
