"""Which weights of the next layer a product requests into the L2 cache.

Between two products of a decode step (attention, norms) the memory idles. A product that is through
with its own weights can have the first ones of the next product fetched meanwhile. This is a hint:
results do not depend on it.

The next product reads its weight in units: a block reads one from its begin to its end, and all
blocks read at the same time. So each unit that is read first gets the same share of the window:
else some blocks would find all of their weights in the cache and others none.
"""

import math
from typing import NamedTuple

import torch

MOST_BYTES = 16 << 20
"""Of a window. An H200 has 50 MB of L2 cache in two halves, and data may be in both of them; the
KV cache and activations need some of it."""
LINE = 128
SHORTEST = 512
"""Bytes of a piece: shorter ones would waste pages of the memory."""
USUAL = 16 << 10
"""Bytes of a piece of weights that are requested as a whole: small enough for all blocks to take
part."""
LONGEST = 512 << 10
"""Bytes of a piece: the instruction counts 16 bytes in 16 bits."""
ALIGNMENT = 16
"""The instruction takes addresses and sizes in such multiples."""


class Reads(NamedTuple):
    """How a product reads its weight."""

    tensor: torch.Tensor
    unit: int
    """Bytes that a block reads one after the other: a row, or its share of a row."""
    first: int
    """Units that blocks read at first; they are the first ones of the tensor."""


class Upcoming(NamedTuple):
    """What is requested: pieces of one size in the same distance of each other."""

    address: int
    """Of the weight. The layer that it belongs to keeps it alive."""
    pieces: int
    piece_bytes: int
    pitch: int
    """Bytes from the begin of a piece to the begin of the next."""


def upcoming_of(reads: Reads, most: int = MOST_BYTES) -> Upcoming | None:
    """The window of a weight; None where nothing of it can be requested."""
    tensor, unit, first = reads
    address = tensor.data_ptr()
    units = tensor.numel() * tensor.element_size() // unit
    first = min(first, units)
    if first < 1 or unit % ALIGNMENT or address % ALIGNMENT or most < SHORTEST:
        return None
    share = min(max(most // first // LINE * LINE, SHORTEST), LONGEST)
    if share < unit:
        return Upcoming(address, min(first, most // share), share, unit)
    # Whole units, also those that are read later: one range, which is cut as suits the kernel.
    range_bytes = min(units, most // unit) * unit
    piece = math.gcd(range_bytes, USUAL)
    piece = piece if piece >= SHORTEST else unit
    return Upcoming(address, range_bytes // piece, piece, piece)
