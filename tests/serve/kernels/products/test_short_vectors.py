"""Vectors of four in one codebook: packing, banks, launches, the plain product against float64."""

from dataclasses import replace

import pytest
import torch

from serve.kernels.products.product import Inputs, Unusable
from serve.kernels.products.short_vectors.layout import (
    BANKS,
    ShortWeight,
    arranged,
    chosen_copies,
    entries_of,
    in_columns,
    in_lanes,
    own_copies,
    packed,
    place,
    prepared,
    unpacked,
)
from serve.kernels.products.short_vectors.product import (
    ShortChunks,
    ShortFewTokens,
    blocks_of,
    launch_of,
)
from serve.kernels.products.short_vectors.unpack import ShortUnpack, ShortUnpackKernel
from serve.kernels.products.vptq_layout import VectorWeight
from tests.serve.kernels.products.test_vptq import (
    H200_BYTES,
    error,
    exact,
    on_gpu,
    vector_weight,
)

QWEN3_8B = (((4096, 1024, 1024), 4096), ((12288, 12288), 4096), ((4096,), 12288))


def short_layers(
    rows: tuple[int, ...], columns: int, entries: int = 4096, norm: bool = False
) -> list[VectorWeight]:
    return [vector_weight(count, columns, (entries, 0), 4, norm) for count in rows]


@pytest.mark.parametrize("columns", [128, 1024, 200, 8])
def test_order_of_lanes_round_trip(columns: int) -> None:
    indices = torch.randint(9999, (13, columns))
    lanes = in_lanes(indices)
    assert lanes.shape == (2, -(-columns // 128), 32, 32)
    assert torch.equal(in_columns(lanes, columns)[:13], indices)


@pytest.mark.parametrize("bits", [4, 8, 12, 13, 14, 16])
def test_packing_round_trip(bits: int) -> None:
    numbers = torch.randint(1 << bits, (2, 3, 32, 32))
    numbers[..., :2] = torch.tensor([0, (1 << bits) - 1])
    words = packed(numbers, bits)
    assert words.shape == (2, 3, bits, 32)
    assert words.dtype == torch.int32
    assert torch.equal(unpacked(words), numbers)


@pytest.mark.parametrize(("entries", "copies", "turns"), [(4096, 2, 2.0), (2048, 4, 1.3)])
def test_arranged_look_ups_are_the_same_and_meet_less(
    entries: int, copies: int, turns: float
) -> None:
    assert chosen_copies(entries) == copies
    lanes = in_lanes(torch.randint(entries, (64, 512)))
    places = arranged(lanes, entries, copies)
    assert torch.equal(entries_of(places, entries), lanes)
    assert places.max() < entries * copies
    together = places.transpose(-1, -2).reshape(-1, BANKS) % BANKS
    loads = torch.nn.functional.one_hot(together, BANKS).sum(dim=1)
    assert float(loads.amax(dim=-1).float().mean()) < turns


def test_copies_of_an_entry_are_in_different_banks() -> None:
    banks = torch.stack([place(torch.arange(2048), copy, 2048) for copy in range(4)]) % BANKS
    assert all((banks[a] != banks[b]).all() for a in range(4) for b in range(a))


def test_small_codebooks_have_a_copy_for_each_lane() -> None:
    assert [own_copies(entries) for entries in (16, 256, 512, 1024, 2048)] == [16, 16, 16, 8, 1]
    assert ShortWeight(*prepared(short_layers((32,), 128, 256))).bits == 8


@pytest.mark.parametrize("norm", [False, True])
def test_the_plain_product_of_joined_layers(norm: bool) -> None:
    first, *others = layers = short_layers((48, 32, 20), 264, 256, norm)
    weight, product = replace(first, joined=tuple(others)), ShortUnpack()
    tensors = product.prepare(weight)
    assert product.outputs(tensors) == weight.outputs == 100
    x = torch.randn(5, 264).to(torch.bfloat16)
    right = torch.cat([x.double() @ exact(layer).t() for layer in layers], dim=1)
    for rows in (32, 64):
        result = product.multiply(Inputs(x), tensors, (("ROWS", rows),))
        assert error(result, right) < 0.005


def test_blocks_are_divided_by_work() -> None:
    assert blocks_of([128, 32, 32], 1, 132) == [64, 16, 16]
    assert blocks_of([384, 384], 1, 132) == [64, 64]
    assert blocks_of([128], 1, 132) == [128]
    assert blocks_of([3, 1], 4, 132) == [1, 1]


@pytest.mark.parametrize(("rows", "columns"), QWEN3_8B)
@pytest.mark.parametrize("entries", [256, 4096, 16384])
def test_every_launch_fits(rows: tuple[int, ...], columns: int, entries: int) -> None:
    bits = (entries * chosen_copies(entries) - 1).bit_length()
    tiles = sum(count // 32 for count in rows)
    weight = ShortWeight(
        torch.empty((tiles, columns // 128, bits, 32), dtype=torch.int32, device="meta"),
        torch.empty((len(rows), entries, 4), dtype=torch.bfloat16, device="meta"),
        *(torch.empty((len(rows), columns), device="meta") for _ in range(2)),
        torch.empty((0, *rows)),
    )
    for tokens in (1, 4, 5, 8, 16):
        candidates = ShortFewTokens().options(sum(rows), columns, tokens)
        assert len(set(candidates)) == len(candidates)
        for options in candidates:
            launch = launch_of(weight, tokens, columns, options, H200_BYTES, 132)
            variant, needed = launch.variant, launch.variant.shared_bytes(tokens, launch.staged)
            assert needed <= H200_BYTES
            assert variant.resident == 1 or 2 * (needed + 1024) <= H200_BYTES + 1024
            assert sum(launch.blocks) <= 132
            assert variant.warps % launch.share == 0
            assert launch.staged % 128 == 0 < launch.staged
            if columns == 4096 and entries == 4096:
                assert launch.staged == columns, "activations are copied once"


def test_refusals() -> None:
    with pytest.raises(Unusable, match="vectors of 4"):
        prepared([vector_weight()])
    with pytest.raises(Unusable, match="one codebook"):
        prepared([vector_weight(vector=4)])
    with pytest.raises(Unusable, match="a power of two"):
        prepared(short_layers((8,), 8, 100))
    with pytest.raises(Unusable, match="3 layers of one kind"):
        prepared([*short_layers((8,), 8), *short_layers((8,), 16)])
    for product in (ShortFewTokens(), ShortUnpackKernel()):
        with pytest.raises(Unusable, match="NVIDIA GPU"):
            product.prepare(short_layers((8,), 8)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 2, 4, 8, 16, 40])
@pytest.mark.parametrize("entries", [256, 1024, 2048, 4096, 16384])
@pytest.mark.parametrize("norm", [False, True])
def test_every_candidate_on_a_gpu(tokens: int, entries: int, norm: bool) -> None:
    first, *others = layers = [
        on_gpu(one) for one in short_layers((1096, 520), 2312, entries, norm)
    ]
    weight = replace(first, joined=tuple(others))
    x = torch.randn(tokens, 2312, device="cuda").to(torch.bfloat16)
    right = torch.cat([x.double() @ exact(layer).t() for layer in layers], dim=1)
    products = [ShortFewTokens()] if tokens <= 16 else [ShortChunks(), ShortUnpackKernel()]
    for product in products:
        tensors = product.prepare(weight)
        for options in product.options(weight.outputs, 2312, tokens):
            found = product.multiply(Inputs(x), tensors, options)
            assert error(found, right) < 0.006, options
            assert torch.equal(found, product.multiply(Inputs(x), tensors, options))
