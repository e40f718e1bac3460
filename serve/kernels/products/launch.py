"""How kernels of few tokens are launched: candidates by shape, and what all of them share."""

import math
import os
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from serve.kernels.products.product import Options

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MULTIPROCESSORS = 132
SHARED_MEMORY = 227 * 1024
BYTES_IN_FLIGHT = 64 * 1024
"""Loads under way that keep the memory busy, for each multiprocessor of an H200."""
BYTES_PER_MICROSECOND = 4.3e6
SMALLEST_BLOCK = 16
WIDE_ROWS = 64
"""Rows of a tile from which on the tensor cores read both operands from shared memory."""
USUAL_STAGES = 4
PADDED = (8, 16, 32, 64)
"""Numbers of tokens that a tile of activations may have."""
FEW_TOKENS = 16
COLUMNS = (64, 128, 256, 512, 1024)
"""Of a tile."""
SPLITS = (1, 2, 3, 4, 6, 8)
"""Over how many programs the columns of a row may be split."""
Way = TypeVar("Way", bound=Hashable)


@dataclass(frozen=True)
class Work:
    """A product whose tiles are chosen."""

    rows: int
    columns: int
    padded: int
    """Tokens, filled up to a size of a tile."""
    weight_bytes: float
    token_bytes: int


@dataclass(frozen=True)
class Tiles:
    """One way to cut a weight into tiles for programs of the tensor cores' kernels."""

    rows: int
    columns: int
    split: int
    warps: int
    stages: int

    def options(self, tokens: int, prefetched: int = 0) -> Options:
        """As launch options; `tokens` is the padded number of them."""
        return options_of(
            BLOCK_N=self.rows,
            BLOCK_K=self.columns,
            SPLIT=self.split,
            TOKENS=tokens,
            PDL=prefetched,
            num_warps=self.warps,
            num_stages=self.stages,
        )

    def shared_bytes(self, work: Work) -> float:
        each = self.rows * work.weight_bytes + work.padded * work.token_bytes
        return self.stages * self.columns * each

    def microseconds(self, work: Work) -> float:
        """A coarse estimate: good enough to order candidates, no more."""
        rows, columns, weight_bytes = work.rows, work.columns, work.weight_bytes
        programs = math.ceil(rows / self.rows) * self.split
        resident = min(int(SHARED_MEMORY // (self.shared_bytes(work) + 1024)), 48 // self.warps)
        on_each = min(programs / MULTIPROCESSORS, resident)
        steps = columns // self.columns / self.split
        in_flight = on_each * min(self.stages - 1, steps) * self.rows * self.columns * weight_bytes
        busy = min(1.0, in_flight / BYTES_IN_FLIGHT)
        waves = programs / (MULTIPROCESSORS * max(1, min(resident, math.ceil(on_each))))
        even = waves / math.ceil(waves)
        transfer = rows * columns * weight_bytes / BYTES_PER_MICROSECOND
        activations = 0.25 * work.padded * work.token_bytes / (self.rows * weight_bytes)
        short = 16 / self.columns  # steps cost time, and so do short runs of bytes in the memory
        alone = 0.05 * (self.warps == 1)  # nothing hides the latency of a single warp's steps
        slowed = (1 + activations + short + alone) / (busy * (0.5 + 0.5 * even))
        if self.split == 1:
            return transfer * slowed
        parts = rows * self.split * work.padded * 4 * 2  # written and read as 32-bit numbers
        return transfer * slowed + 0.7 + parts / BYTES_PER_MICROSECOND


def options_of(**values: int) -> Options:
    return tuple(sorted(values.items()))


def power_of_two(number: int) -> int:
    """The smallest one that is not below."""
    return 1 << (number - 1).bit_length()


def padded_tokens(tokens: int) -> int:
    """The size of a tile for that many tokens; 16 for fewer, which is as fast as 8 mostly."""
    return next(size for size in PADDED if size >= max(tokens, FEW_TOKENS))


def all_tiles(work: Work, blocks: tuple[int, ...]) -> Iterator[Tiles]:
    """Every sensible way to cut a weight; the kernel wants whole blocks of columns."""
    warps_of = {16: (1, 2), 32: (2, 4), 64: (4,), 128: (4, 8)}
    for block_rows, warps in warps_of.items():
        is_narrow = work.padded > FEW_TOKENS and block_rows < WIDE_ROWS
        for block_columns in blocks:
            fits = work.columns % block_columns == 0 and not is_narrow
            if not fits or block_rows > max(work.rows, SMALLEST_BLOCK):
                continue
            steps = work.columns // block_columns
            for split in SPLITS:
                if not can_split(steps, split):
                    continue
                for stages in (3, 4, 5, 6):
                    for count in warps:
                        yield Tiles(block_rows, block_columns, split, count, stages)


def can_split(steps: int, split: int) -> bool:
    """Whether the steps of a row can be split over so many programs: each has some, and two of them
    on average."""
    return split == 1 or (split * 2 <= steps and math.ceil(steps / split) * (split - 1) < steps)


def candidates(
    rows: int,
    columns: int,
    tokens: int,
    weight_bytes: float = 1.0,
    token_bytes: int = 1,
    most: int = 24,
    blocks: tuple[int, ...] = COLUMNS,
) -> list[Options]:
    """Launch options to measure, the best guess first."""
    work = Work(rows, columns, padded_tokens(tokens), weight_bytes, token_bytes)
    fitting = [
        tiles
        for tiles in all_tiles(work, blocks)
        if tiles.shared_bytes(work) <= SHARED_MEMORY // 2
        and 4096 <= tiles.rows * tiles.columns * weight_bytes <= 48 * 1024
    ] or [Tiles(16, math.gcd(columns, blocks[0]), 1, 1, 3)]
    ordered = sorted(
        fitting,
        key=lambda tiles: (tiles.microseconds(work), abs(tiles.stages - USUAL_STAGES)),
    )
    spread = spread_out(ordered, lambda tiles: (tiles.rows, tiles.columns))[: most // 2]
    # A search that runs out of time has seen the first ones, so each kind is among them.
    found = [spread[0].options(work.padded), spread[0].options(work.padded, 2)]
    for place, tiles in enumerate(spread[1:], start=1):
        found.append(tiles.options(work.padded))
        if place <= most // 4 and tokens <= PADDED[0]:
            found.append(spread[place - 1].options(PADDED[0]))
        if place <= most // 6:
            found.append(tiles.options(work.padded, 2))
    return found[:most]


def spread_out(ordered: list[Way], kind_of: Callable[[Way], Hashable]) -> list[Way]:
    """The first of each kind, then the second ones: neighbours in the order are much alike."""
    turns: dict[Way, tuple[int, int]] = {}
    seen: dict[Hashable, int] = {}
    for place, way in enumerate(ordered):
        kind = kind_of(way)
        seen[kind] = seen.get(kind, 0) + 1
        turns[way] = (seen[kind], place)
    return sorted(ordered, key=lambda way: turns[way])


def launch_arguments(options: Options, tokens: int) -> dict[str, int | bool]:
    """Options as keyword arguments of a Triton kernel."""
    arguments: dict[str, int | bool] = dict(options)
    if tokens > arguments.get("TOKENS", tokens):  # a plan for fewer tokens must not lose any
        arguments["TOKENS"] = padded_tokens(tokens)
    if INTERPRETED:
        arguments["PDL"] = 0  # the interpreter has no launches
    else:
        arguments["launch_pdl"] = bool(arguments["PDL"])
    arguments["INTERPRETED"] = INTERPRETED
    return arguments


def counters(rows: int, device: torch.device) -> torch.Tensor:
    """A counter for each block of rows: zero between products."""
    return torch.zeros(math.ceil(rows / SMALLEST_BLOCK), dtype=torch.int32, device=device)
