"""Vector-quantized weights, and how their indices are packed for the kernel.

A warp of the kernel takes 256 columns of one row of vectors: 8 steps of 32 look-ups, one for each
lane. Which column a lane takes in a step follows from the fragments of the tensor cores' product:
lane 8 m + r has column 8 (r / 2) + 2 m + r % 2 of 32. The 8 indices of a lane are neighbours, so
that it reads them at once. Both indices of a vector are one number, main in the lowest bits. Its
first 16 bits are in one tensor, the rest (0, 8 or 16 bits) in another.
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
ROUNDS = 6
"""Of choosing between the copies of an entry; more gain little."""
AT_A_TIME = 1 << 24
"""Look-ups that are spread over copies at a time, which bounds the memory that takes."""


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


def spread(lanes: torch.Tensor, entries: int, extra: int) -> torch.Tensor:
    """Indices into the codebook with copies."""
    rows = max(1, AT_A_TIME // lanes[0].numel())
    return torch.cat([_spread(some, entries, extra) for some in lanes.split(rows)])


def _spread(lanes: torch.Tensor, entries: int, extra: int) -> torch.Tensor:
    """Eight neighbouring lanes read together: each takes the copy whose group of banks fewest
    others have taken. In further rounds all choose again; every round prefers another copy where
    groups are equally full, so that lanes can make way for each other."""
    choices = places(lanes.unflatten(2, (LANES // GROUPS, GROUPS)), entries, extra)
    copies = choices.shape[-1]
    preferred = torch.arange(copies, device=lanes.device)
    found = choices[..., 0].clone()
    taken = torch.zeros_like(found[:, :, :, 0])  # four bits for each group of banks
    one = torch.ones_like(taken)
    for turn in range(ROUNDS):
        order = (preferred + turn) % copies
        for lane in range(GROUPS):
            if turn:
                taken -= one << (found[:, :, :, lane] % GROUPS * 4)
            mine = choices[:, :, :, lane]
            load = taken.unsqueeze(-1) >> (mine % GROUPS * 4) & 15
            best = (load * copies + order).argmin(dim=-1, keepdim=True)
            found[:, :, :, lane] = mine.gather(-1, best).squeeze(-1)
            taken += one << (found[:, :, :, lane] % GROUPS * 4)
    return found.flatten(2, 3)


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
