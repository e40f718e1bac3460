"""Vector-quantized weights, and how their indices are packed for the kernel.

A warp of the kernel takes 256 columns of one row of vectors: 8 steps of 32 look-ups, one for each
lane. Which column a lane takes in a step follows from the fragments of the tensor cores' product:
lane 8 m + r has column 8 (r / 2) + 2 m + r % 2 of 32. The 8 indices of a lane are neighbours, so
that it reads them at once. Both indices of a vector are one number, main in the lowest bits. Its
first 16 bits are in one tensor, the rest (0, 8 or 16 bits) in another.

Eight neighbouring lanes read their main entries together, in as many turns as the fullest group of
banks has entries. Two things make them fewer (mean turns of random indices: 2.6 without them):
entries have copies in other groups, and a lane may swap its look-ups of steps 2 p and 2 p + 1. The
lowest bit of the number in step 2 p tells that it did; main is above it then.
"""

from dataclasses import dataclass

import torch

from serve.kernels.products.product import Unusable, Weight

COLUMNS, LANES, STEPS = 256, 32, 8
ROOM = 8
"""Values of an entry as the kernel reads it: 16 bytes."""
GROUPS = 8
"""Of four banks each in shared memory: an entry of 16 bytes is in one of them."""
MOST_ENTRIES = 65536
MOST_COPIES = 3
"""Of an entry of the main codebook in shared memory; a fourth would gain little."""
ROUNDS = 5
"""Of choosing copies and swaps; more gain little."""
AT_A_TIME = 1 << 24
"""Look-ups that are arranged at a time, which bounds the memory that takes."""


@dataclass(frozen=True)
class VectorWeight(Weight):
    """A linear layer of vectors along its outputs.

    `codes` are the indices of the main codebook [N / vector, K]; `scales` [1, K] are those of the
    columns, all 1 where the format has none. Rows are N. Weights are (main + residual) times the
    column's scale, plus the column's bias.
    """

    main: torch.Tensor | None = None
    """[entries, vector], 16 bit."""
    residual: torch.Tensor | None = None
    """[entries, vector]; None for a format without it."""
    residual_codes: torch.Tensor | None = None
    """[N / vector, K]"""
    biases: torch.Tensor | None = None
    """[K]"""
    has_scales: bool = False
    outliers: "VectorWeight | None" = None
    """The first columns, where they have codebooks of their own. All others follow them in the
    activations, and the columns of this weight do not count them."""
    joined: tuple["VectorWeight", ...] = ()
    """Layers with the same inputs and the same sizes of codebooks, whose outputs follow."""

    @property
    def outputs(self) -> int:
        """Of all joined layers."""
        return self.rows + sum(layer.rows for layer in self.joined)

    @property
    def book(self) -> torch.Tensor:
        assert self.main is not None
        return self.main

    @property
    def vector(self) -> int:
        return int(self.book.shape[1])

    @property
    def rows(self) -> int:
        return int(self.codes.shape[0]) * self.vector


def lane_columns(device: torch.device | None = None) -> torch.Tensor:
    """The column of 32 that each lane takes in a step."""
    lane = torch.arange(LANES, device=device)
    return 8 * ((lane & 7) >> 1) + 2 * (lane >> 3) + (lane & 1)


def index_bits(entries: int) -> int:
    return max(1, (entries - 1).bit_length())


def in_lanes(indices: torch.Tensor) -> torch.Tensor:
    """[rows, K] as [rows, blocks of 256 columns, lanes, steps]; columns beyond K are entry 0."""
    rows, columns = indices.shape
    blocks = -(-columns // COLUMNS)
    padded = torch.nn.functional.pad(indices, (0, blocks * COLUMNS - columns))
    steps = padded.view(rows, blocks, STEPS, LANES)[..., lane_columns(indices.device)]
    return steps.transpose(2, 3).contiguous()


def in_columns(lanes: torch.Tensor, columns: int) -> torch.Tensor:
    """The inverse of `in_lanes`."""
    steps = lanes.transpose(2, 3)
    order = torch.argsort(lane_columns(lanes.device))
    return steps[..., order].reshape(lanes.shape[0], -1)[:, :columns]


def packed(both: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of so many bits as their first 16 bits and the rest, which may be empty."""
    low = _short(both & 0xFFFF)
    rest = both >> 16
    if bits <= 16:
        return low, torch.empty(0, dtype=torch.uint8, device=both.device)
    if bits <= 24:
        return low, rest.to(torch.uint8)
    return low, _short(rest & 0xFFFF)


def unpacked(low: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
    """The numbers, as 64-bit integers."""
    both = low.long() & 0xFFFF
    return both if not tail.numel() else both | ((tail.long() & 0xFFFF) << 16)


def _short(values: torch.Tensor) -> torch.Tensor:
    """Unsigned 16-bit numbers in the bits of signed ones."""
    return torch.where(values >= 1 << 15, values - (1 << 16), values).to(torch.int16)


def padded_book(book: torch.Tensor) -> torch.Tensor:
    """Entries of 16 bytes: [entries, 1, 8], or [entries, 2, 4] with zeros after each vector. The
    last dimension tells the length of the vectors."""
    vector = int(book.shape[1])
    wide = torch.nn.functional.pad(book, (0, ROOM - vector))
    return wide.view(-1, ROOM // vector, vector).contiguous()


def places(index: torch.Tensor, entries: int, extra: int) -> torch.Tensor:
    """Where an entry is [..., copies] in a codebook with so many extra rows. The first entries have
    the most copies; where one has fewer, its first place is repeated. Its copies are in different
    groups of banks, and entries that share their first group differ in the others."""
    line, found = index // GROUPS, [index]
    second = line % (GROUPS - 1)
    third = (second + 1 + line // (GROUPS - 1) % (GROUPS - 2)) % (GROUPS - 1)
    for copy, shift in enumerate((second, third)[: -(-extra // entries)]):
        place = entries * (copy + 1) + line * GROUPS + (index + 1 + shift) % GROUPS
        found.append(torch.where(index < extra - copy * entries, place, index))
    return torch.stack(found, dim=-1)


def with_copies(main: torch.Tensor, extra: int) -> torch.Tensor:
    """The codebook with so many rows more: copies of its first entries."""
    whole = torch.cat([main, torch.empty_like(main).repeat(-(-extra // len(main)), 1)])
    whole = whole[: len(main) + extra]
    for place in places(torch.arange(len(main), device=main.device), len(main), extra).unbind(-1):
        whole[place] = main
    return whole


def in_pairs(lanes: torch.Tensor) -> torch.Tensor:
    """[rows, blocks, 32, 8] as [.., 8 lanes, 2 steps] of those that read together."""
    return (
        lanes.view(-1, LANES // GROUPS, GROUPS, STEPS // 2, 2)
        .transpose(2, 3)
        .reshape(-1, GROUPS, 2)
    )


def from_pairs(pairs: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The inverse of `in_pairs`."""
    return pairs.view(-1, LANES // GROUPS, STEPS // 2, GROUPS, 2).transpose(2, 3).reshape(shape)


def arranged(lanes: torch.Tensor, entries: int, extra: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices into the codebook with copies, in the order of use, and which are swapped: 1 for both
    steps, else 0."""
    rows = max(1, AT_A_TIME // lanes[0].numel())
    parts = [_arranged(in_pairs(some), entries, extra) for some in lanes.split(rows)]
    found, swapped = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return from_pairs(found, lanes.shape), from_pairs(swapped, lanes.shape)


def _arranged(pairs: torch.Tensor, entries: int, extra: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lanes choose one after the other, several times, by how full the groups of banks are."""
    choices = places(pairs, entries, extra)  # [.., lanes, steps, copies]
    found, swapped = pairs.clone(), torch.zeros_like(pairs)
    taken = torch.zeros((len(pairs), 2, GROUPS), dtype=pairs.dtype, device=pairs.device)
    one = torch.ones_like(pairs[:, 0]).unsqueeze(-1)
    for turn in range(ROUNDS):
        for lane in range(GROUPS):
            if turn:
                taken.scatter_add_(2, found[:, lane].unsqueeze(-1) % GROUPS, -one)
            straight, cost = _best(choices[:, lane], taken, turn)
            crossed, other_cost = _best(choices[:, lane].flip(1), taken, turn)
            # Equal costs are decided otherwise in every second round, so that lanes make way.
            swap = (other_cost < cost + turn % 2).unsqueeze(-1)
            found[:, lane] = torch.where(swap, crossed, straight)
            swapped[:, lane] = swap.long()
            taken.scatter_add_(2, found[:, lane].unsqueeze(-1) % GROUPS, one)
    return found, swapped


def _best(
    choices: torch.Tensor, taken: torch.Tensor, turn: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each step the copy whose group is emptiest, and what that costs: turns first, then
    crowded groups. Every round prefers another copy where groups are equally full."""
    copies = choices.shape[-1]
    preferred = (torch.arange(copies, device=choices.device) + turn) % copies
    loads = taken.gather(2, choices % GROUPS)
    best = (loads * copies + preferred).argmin(dim=-1, keepdim=True)
    load = loads.gather(2, best).squeeze(-1)
    cost = torch.maximum(taken.amax(dim=-1), load + 1) * 512 + load * load * 16 + load * 8
    return choices.gather(2, best).squeeze(-1), cost.sum(dim=-1)


def swapped_steps(lanes: torch.Tensor, swapped: torch.Tensor) -> torch.Tensor:
    """Indices [.., 8 steps] in the order of use."""
    steps = lanes.unflatten(-1, (STEPS // 2, 2))
    return torch.where(swapped.bool(), steps.flip(-1).flatten(-2), lanes)


def unswapped(both: torch.Tensor) -> torch.Tensor:
    """Numbers [.., 8 steps] with their lowest bit, in the order of columns and without it."""
    return swapped_steps(both, both & 1) >> 1


def check(weight: VectorWeight) -> None:
    """Raises Unusable, with the reason, for what cannot be packed."""
    for book in (weight.main, weight.residual):
        if book is None:
            continue
        if book.dtype not in (torch.bfloat16, torch.float16):
            raise Unusable(f"codebooks are {book.dtype}, not 16-bit floats")
        if book.shape[1] not in (4, 8):
            raise Unusable(f"takes vectors of 4 or 8, not of {book.shape[1]}")
        if not 1 <= book.shape[0] <= MOST_ENTRIES:
            raise Unusable(f"takes codebooks of 1 to {MOST_ENTRIES} entries, not {book.shape[0]}")
    if weight.main is None or (weight.residual is None) != (weight.residual_codes is None):
        raise Unusable("indices and codebooks do not belong together")
    if weight.residual is not None and weight.residual.shape[1] != weight.vector:
        raise Unusable("main and residual vectors differ in length")
    if weight.columns % ROOM or weight.codes.shape[1] != weight.columns:
        raise Unusable(f"{weight.columns} columns are no multiple of {ROOM}")
    if weight.outliers is not None:
        if weight.outliers.outliers is not None or weight.outliers.rows != weight.rows:
            raise Unusable("outlier columns are not a weight of as many rows")
        check(weight.outliers)
