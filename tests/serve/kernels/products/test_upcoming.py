"""Which bytes of the next weight are requested: a plain model of the kernel's blocks."""

import pytest
import torch

from serve.kernels.products.upcoming import (
    ALIGNMENT,
    LONGEST,
    MOST_BYTES,
    SHORTEST,
    Reads,
    Upcoming,
    upcoming_of,
)

THREADS_OF_WARP = 32


def weight(size: int) -> torch.Tensor:
    """Bytes that begin at a multiple of 16, and take no memory until they are used."""
    whole = torch.empty(size + ALIGNMENT, dtype=torch.int8)
    return whole[-whole.data_ptr() % ALIGNMENT :][:size]


def by_blocks(upcoming: Upcoming, blocks: int, warps: int) -> list[tuple[int, int]]:
    """Begin and end of each request, as the threads of all blocks make them."""
    address, pieces, piece_bytes, pitch = upcoming
    found = []
    for block in range(blocks):
        for thread in range(warps * THREADS_OF_WARP):
            place = thread % THREADS_OF_WARP * warps + thread // THREADS_OF_WARP
            first, step = block + place * blocks, warps * THREADS_OF_WARP * blocks
            for piece in range(first, pieces, step):
                begin = address + piece * pitch
                found.append((begin, begin + piece_bytes))
    return found


@pytest.mark.parametrize("most", [1 << 12, 1 << 16, (1 << 18) + 5, 1 << 24])
@pytest.mark.parametrize(
    ("rows", "unit", "first", "blocks"),
    [
        (256, 4096, 96, 24),
        (96, 12288 // 4, 96, 7),
        (64, 4176, 48, 3),
        (100, 80, 100, 13),
        (16, 98304, 10, 5),
        (1, 1 << 20, 1, 3),
        (33, 16, 7, 2),
    ],
)
def test_each_byte_is_requested_once(
    rows: int, unit: int, first: int, blocks: int, most: int
) -> None:
    tensor = weight(rows * unit)
    upcoming = upcoming_of(Reads(tensor, unit, first), most)
    assert upcoming is not None
    requests = sorted(by_blocks(upcoming, blocks, warps=2))
    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel()
    for number, (start, stop) in enumerate(requests):
        assert begin <= start < stop <= end
        assert start % ALIGNMENT == (stop - start) % ALIGNMENT == 0
        assert stop - start <= LONGEST
        if number:
            assert requests[number - 1][1] <= start
    total = sum(stop - start for start, stop in requests)
    assert total == upcoming.pieces * upcoming.piece_bytes <= most
    # At most a line of each unit that is read first is missing, or the rest of a unit or a piece.
    lost = max(min(first, rows) * 128, unit, SHORTEST)
    reachable = min(most, tensor.numel()) if unit <= LONGEST else LONGEST
    assert total > reachable - lost


def test_all_that_is_read_first_gets_its_share() -> None:
    """None of the blocks finds all in the cache while another finds nothing."""
    tensor = weight(1024 * 4096)
    upcoming = upcoming_of(Reads(tensor, 4096, 512), 1 << 20)
    assert upcoming == (tensor.data_ptr(), 512, 2048, 4096)


def test_whole_weights_are_requested_in_even_pieces() -> None:
    """Those of the o_proj of Qwen3-8B do not fill the window."""
    tensor = weight(4096 * 4096)
    upcoming = upcoming_of(Reads(tensor, 4096, 4096))
    assert upcoming == (tensor.data_ptr(), 1024, 16384, 16384)
    assert tensor.numel() == MOST_BYTES


def test_what_cannot_be_requested() -> None:
    tensor = weight(64 * 256)
    assert upcoming_of(Reads(tensor, 256, 0)) is None
    assert upcoming_of(Reads(tensor, 264, 4)) is None
    assert upcoming_of(Reads(tensor[1:], 256, 4)) is None
    assert upcoming_of(Reads(tensor[:0], 256, 4)) is None
    assert upcoming_of(Reads(tensor, 256, 4), most=0) is None
