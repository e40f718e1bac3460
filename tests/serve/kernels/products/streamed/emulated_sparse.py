"""The kernel of `cuda_kernels/streamed_sparse.py`, lane by lane as the PTX manual defines its
instructions: which bytes a lane reads, how it widens them, and what `ldmatrix` and `mma.sp` do.
"""

import re

import torch

from serve.kernels.products.cuda_kernels.streamed_sparse import Variant
from serve.kernels.products.cuda_kernels.widening import FLOATS, INTEGERS

LANES = 32
LANE = torch.arange(LANES)
GROUP, QUAD = LANE >> 2, LANE & 3
UNIT = 160
"""Of 16 bytes."""
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
Word = torch.Tensor | int


def halves(word: Word, dtype: torch.dtype) -> torch.Tensor:
    """The two numbers of a register, in float64: [..., 2]."""
    bits = torch.as_tensor(word)
    both = torch.stack([bits & 0xFFFF, bits >> 16 & 0xFFFF], dim=-1)
    return both.to(torch.uint16).view(dtype).double()


def widened(words: torch.Tensor, is_float: bool, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the kernel's own statements: the numbers of bytes 0 and 2, and of bytes 1 and 3."""
    kind = DTYPES[dtype]

    def masked(value: torch.Tensor, mask: int, bits: Word) -> torch.Tensor:
        return value & mask | bits

    def fma2(a: torch.Tensor, b: Word, c: Word) -> torch.Tensor:
        exact = halves(a, kind) * halves(b, kind) + halves(c, kind)
        assert torch.equal(exact.to(kind).double(), exact), "a weight is rounded"
        return exact

    source = (FLOATS if is_float else INTEGERS)[dtype]
    source = re.sub(r"(0x[0-9a-f]+)u", r"\1", source.replace("const u32 ", ""))
    names: dict[str, object] = {"word": words, "masked": masked, "fma2": fma2}
    for statement in source.split(";"):
        for assignment in re.split(r",\s*(?=\w+ = )", statement.strip()):
            exec(assignment, names)
    even, odd = names["even"], names["odd"]
    assert isinstance(even, torch.Tensor)
    assert isinstance(odd, torch.Tensor)
    return even, odd


def loaded(x: torch.Tensor, first_token: int, column: int) -> torch.Tensor:
    """ldmatrix.x4 of 8 tokens and 32 columns: [register, lane, half]. Lanes beyond the last token
    give its address."""
    tokens = (first_token + GROUP).clamp(max=x.shape[0] - 1)
    columns = column + 8 * torch.arange(4)[:, None] + 2 * QUAD
    return torch.stack([x[tokens, columns], x[tokens, columns + 1]], dim=-1)


def multiplied(
    a: torch.Tensor, b: torch.Tensor, metadata: torch.Tensor, selector: int
) -> torch.Tensor:
    """mma.sp.m16n8k32 on fragments a and b [4, lane, half]: the sums [4, lane]."""
    left = torch.zeros(16, 32, dtype=torch.float64)
    right = torch.zeros(32, 8, dtype=torch.float64)
    for register in range(4):
        below, side = register & 1, register >> 1
        giver = 4 * GROUP + 2 * selector + side
        places = [metadata[giver] >> (16 * below + 4 * QUAD + 2 * which) & 3 for which in range(2)]
        assert (places[0] < places[1]).all(), "undefined with ordered metadata"
        for which in range(2):
            columns = 16 * side + 4 * QUAD + places[which]
            left[GROUP + 8 * below, columns] = a[register, :, which]
            right[8 * register + 2 * QUAD + which, GROUP] = b[register, :, which]
    sums = left @ right
    return torch.stack(
        [sums[GROUP + 8 * (place >> 1), 2 * QUAD + (place & 1)] for place in range(4)]
    )


def unit_sums(words: torch.Tensor, x: torch.Tensor, column: int, variant: Variant) -> torch.Tensor:
    """The sums [token, 16] of a unit whose words are [piece, lane, 4]."""
    result = torch.zeros(variant.tokens, 16, dtype=torch.float64)
    for step in range(8):
        pair, odd = divmod(step, 2)
        a = torch.stack(
            [
                register
                for side in range(2)
                for register in widened(
                    words[pair, :, 2 * odd + side], variant.is_float, variant.dtype
                )
            ]
        )
        for first in range(0, variant.tokens, 8):
            b = loaded(x, first, column + 32 * step)
            sums = multiplied(a, b, words[4, :, pair], odd)
            for place in range(4):
                token, row = first + 2 * QUAD + (place & 1), GROUP + 8 * (place >> 1)
                result[token, row] += sums[place]
    return result


def product(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, variant: Variant, clusters: int
) -> torch.Tensor:
    """[tokens, N] in float64, block by block and warp by warp."""
    tiles, units = packed.shape[:2]
    words = packed.reshape(-1).view(torch.int32).view(-1, 4).long() & 0xFFFFFFFF
    tokens, columns = x.shape
    whole = torch.zeros(tokens, units * 256, dtype=torch.float64)
    whole[:, :columns] = x
    result = torch.zeros(tokens, tiles * 16, dtype=torch.float64)
    for block in range(clusters * variant.split):
        part = block % variant.split
        first = part * units // variant.split
        count = (part + 1) * units // variant.split - first
        for tile in range(block // variant.split, tiles, clusters):
            for warp in range(variant.warps):
                own = (count - warp + variant.warps - 1) // variant.warps
                assert own > 0, "a warp that has no unit would never end"
                for number in range(own):
                    unit = first + warp + number * variant.warps
                    start = (tile * units + unit) * UNIT
                    here = words[start : start + UNIT].view(5, LANES, 4)
                    sums = unit_sums(here, whole, unit * 256, variant)
                    result[:, tile * 16 : tile * 16 + 16] += sums[:tokens]
    return result * scales.double()
