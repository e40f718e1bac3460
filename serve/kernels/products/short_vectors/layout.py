"""Vectors of four weights and one codebook, as their kernels read them.

A warp takes a tile: 8 rows of vectors (32 outputs) and 128 columns. A lane has 32 look-ups of 8
bytes, one for each step. Lane 4 g + q has row g of the tile and, in step 8 c + j, column
32 c + 8 q + j: the fragments of the tensor cores' product want it so. The 32 numbers of a lane have
as many words of 32 bits as a number has bits, and lie side by side in them.

Sixteen lanes read their entries together, in as many turns as the fullest pair of banks has
entries: 3.1 for random entries. Small codebooks have a copy for each of the lanes. Others have
copies in other banks, and numbers tell which one to read: 2.0 turns with two, 1.3 with four.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serve.kernels.products.product import Unusable, Weight
from serve.kernels.products.vptq_layout import VectorWeight, check, index_bits

VECTOR, LANES, STEPS = 4, 32, 32
ROWS, COLUMNS = 8, 128
"""Of a tile, in vectors."""
OUTPUTS = ROWS * VECTOR
BANKS = 16
"""Pairs of banks in shared memory; as many lanes read together."""
ENTRY_BYTES = 8
FEWEST_ENTRIES, MOST_ENTRIES = 16, 16384
BOOK_BYTES = 64 << 10
"""Of a codebook with its copies, where it is not larger without them: two blocks then fit on a
multiprocessor."""
MOST_COPIES = 4
FEWEST_OWN = 8
"""Copies for single lanes pay from so many on."""
ROUNDS = 8
"""Of choosing copies; more gain little."""
AT_A_TIME = 1 << 20
"""Groups of 16 look-ups that are arranged at a time, which bounds the memory that takes."""
MOST_LAYERS = 3
WORD, WORD_MASK = 32, 0xFFFFFFFF


@dataclass(frozen=True)
class ShortWeight:
    """The prepared tensors of layers that share their input, such as q, k and v."""

    codes: torch.Tensor
    """[tiles, blocks of 128 columns, bits of a number, lanes], 32-bit words; all layers in turn."""
    books: torch.Tensor
    """[layers, entries, 4]"""
    scales: torch.Tensor
    """[layers, K], or empty where columns have neither scales nor biases."""
    biases: torch.Tensor
    sizes: torch.Tensor
    """Empty; its shape is [0, outputs of each layer]."""

    @property
    def rows(self) -> list[int]:
        """Outputs of each layer."""
        return [int(size) for size in self.sizes.shape[1:]]

    @property
    def tiles(self) -> list[int]:
        """Rows of tiles of each layer."""
        return [-(-rows // OUTPUTS) for rows in self.rows]

    @property
    def entries(self) -> int:
        return int(self.books.shape[1])

    @property
    def bits(self) -> int:
        return int(self.codes.shape[2])

    @property
    def copies(self) -> int:
        """Of an entry, that numbers choose from."""
        return 1 << (self.bits - index_bits(self.entries))

    @property
    def norm(self) -> bool:
        return bool(self.scales.numel())

    def dense(self, layer: int, first: int, last: int, columns: int) -> torch.Tensor:
        """Some rows of tiles of a layer as weights [outputs, columns] in 32 bits."""
        begin = sum(self.tiles[:layer])
        fields = unpacked(self.codes[begin + first : begin + last])
        entry = entries_of(in_columns(fields, columns), self.entries)
        weights = self.books[layer].float()[entry].transpose(1, 2).reshape(-1, columns)
        if self.norm:
            weights = weights * self.scales[layer].float() + self.biases[layer].float()
        return weights


def own_copies(entries: int) -> int:
    """Copies of each entry for single lanes: all of them, or none where the codebook is larger."""
    count = min(BANKS, BOOK_BYTES // (entries * ENTRY_BYTES))
    return count if count >= FEWEST_OWN else 1


def chosen_copies(entries: int) -> int:
    """Copies that numbers choose from."""
    if own_copies(entries) > 1:
        return 1
    return max(1, min(MOST_COPIES, BOOK_BYTES // (entries * ENTRY_BYTES)))


def in_lanes(indices: torch.Tensor) -> torch.Tensor:
    """[rows of vectors, K] as [tiles, blocks, lanes, steps]; what is added is entry 0."""
    rows, columns = indices.shape
    tiles, blocks = -(-rows // ROWS), -(-columns // COLUMNS)
    more = (0, blocks * COLUMNS - columns, 0, tiles * ROWS - rows)
    parts = torch.nn.functional.pad(indices, more).view(tiles, ROWS, blocks, 4, 4, 8)
    return parts.permute(0, 2, 1, 4, 3, 5).reshape(tiles, blocks, LANES, STEPS)


def in_columns(lanes: torch.Tensor, columns: int) -> torch.Tensor:
    """The inverse of `in_lanes`, with all rows of the last tile."""
    tiles, blocks = lanes.shape[:2]
    parts = lanes.view(tiles, blocks, ROWS, 4, 4, 8).permute(0, 2, 1, 4, 3, 5)
    return parts.reshape(tiles * ROWS, blocks * COLUMNS)[:, :columns]


def packed(fields: torch.Tensor, bits: int) -> torch.Tensor:
    """[.., lanes, 32 numbers] as [.., words, lanes]."""
    words = [torch.zeros_like(fields[..., 0]) for _ in range(bits + 1)]
    for step in range(STEPS):
        word, shift = divmod(step * bits, WORD)
        placed = fields[..., step] << shift
        words[word] |= placed & WORD_MASK
        words[word + 1] |= placed >> WORD
    whole = torch.stack(words[:bits], dim=-2)
    return torch.where(whole >> (WORD - 1) > 0, whole - (1 << WORD), whole).to(torch.int32)


def unpacked(words: torch.Tensor) -> torch.Tensor:
    """The inverse of `packed`, as 64-bit integers."""
    bits = int(words.shape[-2])
    wide = torch.nn.functional.pad(words.long() & WORD_MASK, (0, 0, 0, 1))
    fields = []
    for step in range(STEPS):
        word, shift = divmod(step * bits, WORD)
        both = wide[..., word, :] | wide[..., word + 1, :] << WORD
        # A sign bit of the upper word is beyond what is kept.
        fields.append(both >> shift & ((1 << bits) - 1))
    return torch.stack(fields, dim=-1)


def rotation(line: torch.Tensor, copy: int) -> torch.Tensor:
    """How far a copy is moved within its line of 16 entries: 1 to 15, different for each copy."""
    distance = 1 + line // (BANKS - 1) % 7
    return 1 + (line + (copy - 1) * distance) % (BANKS - 1)


def place(entry: torch.Tensor, copy: int, entries: int) -> torch.Tensor:
    """Where a copy of an entry is."""
    if not copy:
        return entry
    line = entry // BANKS
    return entries * copy + line * BANKS + (entry + rotation(line, copy)) % BANKS


def entries_of(places: torch.Tensor, entries: int) -> torch.Tensor:
    """The inverse of `place`."""
    copy, within = places // entries, places % entries
    line, found = within // BANKS, within.clone()
    for number in range(1, MOST_COPIES):
        moved = line * BANKS + (within - rotation(line, number)) % BANKS
        found = torch.where(copy == number, moved, found)
    return found


def arranged(lanes: torch.Tensor, entries: int, copies: int) -> torch.Tensor:
    """Entries [.., 32 lanes, steps] as places: few that are read together share a bank."""
    if copies == 1:
        return lanes
    groups = lanes.transpose(-1, -2).reshape(-1, BANKS)
    found = torch.cat([_arranged(some, entries, copies) for some in groups.split(AT_A_TIME)])
    return found.view(*lanes.shape[:-2], STEPS, LANES).transpose(-1, -2)


def _arranged(groups: torch.Tensor, entries: int, copies: int) -> torch.Tensor:
    """Lanes choose one after the other, several times, the emptiest of their banks."""
    choices = torch.stack([place(groups, copy, entries) for copy in range(copies)], dim=-1)
    banks = choices % BANKS
    taken = torch.zeros((len(groups), BANKS), dtype=torch.int64, device=groups.device)
    best = torch.zeros((len(groups), BANKS, 1), dtype=torch.int64, device=groups.device)
    one = torch.ones((len(groups), 1), dtype=torch.int64, device=groups.device)
    for turn in range(ROUNDS):
        preferred = (torch.arange(copies, device=groups.device) + turn) % copies
        for lane in range(BANKS):
            own = banks[:, lane]
            if turn:
                taken.scatter_add_(1, own.gather(1, best[:, lane]), -one)
            costs = taken.gather(1, own) * copies + preferred
            best[:, lane] = costs.argmin(dim=1, keepdim=True)
            taken.scatter_add_(1, own.gather(1, best[:, lane]), one)
    return choices.gather(2, best).squeeze(2)


def check_short(weight: Weight) -> VectorWeight:
    """Raises Unusable, with the reason, for what these kernels do not take."""
    if not isinstance(weight, VectorWeight):
        raise Unusable("takes vector-quantized weights only")
    check(weight)
    entries = int(weight.book.shape[0])
    if weight.vector != VECTOR or weight.residual is not None or weight.outliers is not None:
        raise Unusable(f"takes vectors of {VECTOR} in one codebook, without outlier columns")
    if entries & (entries - 1) or not FEWEST_ENTRIES <= entries <= MOST_ENTRIES:
        raise Unusable(f"takes {FEWEST_ENTRIES} to {MOST_ENTRIES} entries, a power of two")
    return weight


def check_alike(weights: Sequence[Weight]) -> list[VectorWeight]:
    """Raises Unusable for layers that one launch cannot multiply."""
    layers = [check_short(weight) for weight in weights]
    kinds = {(one.book.shape, one.book.dtype, one.columns, has_norm(one)) for one in layers}
    if len(kinds) > 1 or len(layers) > MOST_LAYERS:
        raise Unusable(f"takes up to {MOST_LAYERS} layers of one kind")
    return layers


def prepared(weights: Sequence[Weight]) -> list[torch.Tensor]:
    """The tensors of layers that share their input and the sizes of their codebooks."""
    layers = check_alike(weights)
    entries = int(layers[0].book.shape[0])
    copies = chosen_copies(entries)
    bits = index_bits(entries * copies)
    codes = [packed(arranged(in_lanes(one.codes.long()), entries, copies), bits) for one in layers]
    books = torch.stack([one.book for one in layers]).contiguous()
    scales = biases = books.new_empty(0)
    if has_norm(layers[0]):
        scales = torch.stack([_scales(one) for one in layers]).to(books.dtype)
        biases = torch.stack([_biases(one) for one in layers]).to(books.dtype)
    sizes = books.new_empty((0, *(one.rows for one in layers)))
    return [torch.cat(codes).contiguous(), books, scales, biases, sizes]


def has_norm(weight: VectorWeight) -> bool:
    return weight.has_scales or weight.biases is not None


def _scales(weight: VectorWeight) -> torch.Tensor:
    return (weight.scales if weight.has_scales else torch.ones_like(weight.scales)).reshape(-1)


def _biases(weight: VectorWeight) -> torch.Tensor:
    none = torch.zeros_like(_scales(weight))
    return none if weight.biases is None else weight.biases.reshape(-1).to(none.dtype)
