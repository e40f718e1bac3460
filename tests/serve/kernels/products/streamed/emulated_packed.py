"""The kernel of `cuda_kernels/streamed_packed.py`, lane by lane: the same index arithmetic, bit
operations and instructions, as the CUDA manual defines them."""

import torch

from serve.kernels.products.cuda_kernels.streamed_packed import Variant
from serve.kernels.products.cuda_kernels.streaming import SPARE_ROWS, STEP
from serve.kernels.products.streamed.packed_layout import Packed
from tests.serve.kernels.products.emulated_vptq import GROUP, LANE, QUAD, multiplied

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
LOW_HALF = 0xFFFF


class Emulated:
    """One launch. Words are int64 here, so that shifts are those of unsigned numbers."""

    def __init__(self, variant: Variant, weight: Packed, x: torch.Tensor, blocks: int) -> None:
        self.v, self.x, self.blocks = variant, x, blocks
        self.tiles, self.steps = weight.codes.shape[:2]
        self.codes = (weight.codes.long() & 0xFFFFFFFF).flatten()
        self.groups = (weight.groups.long() & 0xFFFFFFFF).flatten()
        self.row_scales, self.rows = weight.row_scales.flatten(), weight.rows
        self.dtype = DTYPES[variant.dtype]
        bfloat = variant.dtype == "bf16"
        self.magic = 0x43004300 if bfloat else 0x64006400
        self.splits_bytes = bfloat and variant.bits == 8
        self.slots = variant.slots(self.steps)
        self.share = -(-self.steps // variant.split)
        self.y = torch.full((x.shape[0], self.rows), torch.nan)

    def run(self) -> torch.Tensor:
        turns = self.blocks // self.v.split
        parts = -(-self.tiles // self.v.tiles)
        for cluster in range(turns):
            for part in range(cluster, parts, turns):
                sums = [self.block_sums(part, rank) for rank in range(self.v.split)]
                self.join(part, sums)
        return self.y

    def shared_x(self, rank: int) -> torch.Tensor:
        """Shared memory of a block, in numbers of 16 bits; what nothing writes is NaN."""
        width = self.slots * self.v.warps * STEP
        memory = torch.full((self.x.shape[0], width + self.v.padding // 2), torch.nan)
        begin = rank * self.share * STEP
        end = min(min((rank + 1) * self.share, self.steps) * STEP, self.x.shape[1])
        memory[:, :width] = 0
        memory[:, : end - begin] = self.x[:, begin:end].float()
        return memory.flatten()

    def block_sums(self, part: int, rank: int) -> torch.Tensor:
        """The set of sums in shared memory."""
        tokens, rows = self.x.shape[0], self.v.tiles * 16
        memory = self.shared_x(rank)
        stride = rows + SPARE_ROWS
        sums = torch.full((self.v.warps * tokens * stride,), torch.nan)
        for warp in range(self.v.warps):
            total = torch.zeros(self.v.tiles, self.v.narrows, 4, 32)
            for slot in range(self.slots):
                step = rank * self.share + warp + slot * self.v.warps
                is_valid = step < min((rank + 1) * self.share, self.steps)
                at_x = (slot * self.v.warps + warp) * STEP
                for r in range(self.v.tiles):
                    tile = min(part * self.v.tiles + r, self.tiles - 1)
                    # A step without weights has those of another.
                    total[r] += self.products(tile, step if is_valid else 0, memory, at_x)
            for n in range(self.v.narrows):
                for i in range(4):
                    token = 8 * n + 2 * QUAD + (i & 1)
                    for r in range(self.v.tiles):
                        row = r * 16 + GROUP + 8 * (i >> 1)
                        to = (warp * tokens + token) * stride + row
                        sums[to[token < tokens]] = total[r, n, i][token < tokens]
        return sums

    def products(self, tile: int, step: int, memory: torch.Tensor, at_x: int) -> torch.Tensor:
        """What a step of a tile adds: [narrows, 4, lane]."""
        v, at = self.v, tile * self.steps + step
        tokens, width = self.x.shape[0], memory.numel() // self.x.shape[0]
        total = torch.zeros(v.narrows, 4, 32)
        for c in range(4):
            of = c * v.groups // 4
            words_of_lane = v.groups * (2 if v.zeros else 1)
            from_group = (at * 8 + GROUP) * words_of_lane
            zero = torch.full((32,), (1 << (v.bits - 1)) * 0x10001)
            if v.zeros:
                zero = self.groups[from_group + v.groups + of]
            above, below = zero & LOW_HALF, zero >> 16
            shifts = [self.shift(half | half << 16) for half in (above, below)]
            scales = torch.ones(2, 32)
            if v.groups:
                pair = self.groups[from_group + of]
                halves = torch.stack([pair & LOW_HALF, pair >> 16])
                scales = floats(halves, DTYPES[v.scale_dtype])
            for j in range(2):
                a = self.widened(at, 2 * c + j, shifts)
                for n in range(v.narrows):
                    row = (GROUP + 8 * n).clamp(max=tokens - 1) * width
                    first = row + at_x + c * 32 + QUAD * 8 + 4 * j
                    b = torch.stack(
                        [memory[first[:, None] + 2 * i + torch.arange(2)] for i in (0, 1)]
                    )
                    sums = multiplied(a, b)
                    total[n] += sums * scales[[0, 0, 1, 1]]
        return total

    def widened(self, at: int, m: int, shifts: list[torch.Tensor]) -> torch.Tensor:
        """Fragment A of a product: [4, lane, half]."""
        loads = self.v.bits // 2

        def word(place: int) -> torch.Tensor:
            return self.codes[((at * loads + place // 4) * 32 + LANE) * 4 + place % 4]

        registers = []
        for t in range(4):
            if self.v.bits == 4:
                values = self.or_magic(word(m) >> (4 * t), 0x000F000F)
            else:
                byte = word(2 * m + (t >> 1)) >> (8 * (t & 1))
                values = (
                    self.centered(byte) if self.splits_bytes else self.or_magic(byte, 0x00FF00FF)
                )
            if not self.splits_bytes or self.v.zeros:
                values = (values + shifts[t & 1]).to(self.dtype)
            registers.append(values.float())
        return torch.stack(registers)

    def or_magic(self, word: torch.Tensor, mask: int) -> torch.Tensor:
        return pairs(word & mask | self.magic, self.dtype)

    def centered(self, word: torch.Tensor) -> torch.Tensor:
        low = pairs(word & 0x007F007F | 0x43004300, self.dtype)
        return (low + pairs(~word & 0x00800080 | 0xC300C300, self.dtype)).to(self.dtype)

    def shift(self, zero: torch.Tensor) -> torch.Tensor:
        if self.splits_bytes:
            return -self.centered(zero)
        return pairs(zero | self.magic | 0x80008000, self.dtype)

    def join(self, part: int, sums: list[torch.Tensor]) -> None:
        tokens, rows = self.x.shape[0], self.v.tiles * 16
        stride = rows + SPARE_ROWS
        i = torch.arange(tokens * rows)
        token, row = i // rows, i % rows
        output = part * rows + row
        result = torch.zeros(len(i))
        for block in sums:
            for warp in range(self.v.warps):
                result += block[(warp * tokens + token) * stride + row]
        token, output, result = (values[output < self.rows] for values in (token, output, result))
        if not self.v.groups:
            result *= self.row_scales[output]
        assert self.y[token, output].isnan().all()  # nothing is written twice
        self.y[token, output] = result


def floats(halves: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """16-bit patterns as numbers."""
    return halves.to(torch.uint16).view(dtype).float()


def pairs(words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The two 16-bit numbers of each word: [..., 2]."""
    halves = torch.stack([words & LOW_HALF, words >> 16 & LOW_HALF], dim=-1)
    return halves.to(torch.uint16).view(dtype)
