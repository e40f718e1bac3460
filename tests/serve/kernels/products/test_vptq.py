"""Vector-quantized weights: packing, the plain product against float64, the kernel's arithmetic."""

import ctypes
import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from serve.kernels.products.cuda_kernels import vptq_unpack
from serve.kernels.products.cuda_kernels.vptq import DIRECT, NAME, NONE, SHARED, Variant
from serve.kernels.products.cuda_kernels.vptq_unpack import UnpackVariant
from serve.kernels.products.product import Inputs, Unusable, Weight
from serve.kernels.products.vptq import VptqFewTokens, best_shares, share_of, variant_of
from serve.kernels.products.vptq_layout import (
    COLUMNS,
    VectorWeight,
    arranged,
    in_columns,
    in_lanes,
    lane_columns,
    packed,
    places,
    swapped_steps,
    unpacked,
    with_copies,
)
from serve.kernels.products.vptq_prepared import extra_entries, parts_of, prepared
from serve.kernels.products.vptq_unpack import VptqUnpack
from tests.serve.kernels.products import emulated_vptq

H200_BYTES = 227 << 10


def vector_weight(
    rows: int = 32,
    columns: int = 264,
    entries: tuple[int, int] = (4096, 256),
    vector: int = 8,
    norm: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> VectorWeight:
    """A made-up weight; `entries` of the residual codebook 0 for none."""
    mains, residuals = entries
    shape = (rows // vector, columns)
    return VectorWeight(
        codes=torch.randint(mains, shape),
        scales=1 + 0.2 * torch.rand(1, columns),
        bits=16,
        columns=columns,
        main=torch.randn(mains, vector).to(dtype),
        residual=(0.2 * torch.randn(residuals, vector)).to(dtype) if residuals else None,
        residual_codes=torch.randint(residuals, shape) if residuals else None,
        biases=0.1 * torch.randn(columns) if norm else None,
        has_scales=norm,
    )


def exact(weight: VectorWeight) -> torch.Tensor:
    """[N, K] in float64, outlier columns first."""
    values = weight.book.double()[weight.codes]
    if weight.residual is not None:
        values = values + weight.residual.double()[weight.residual_codes]
    dense = values.transpose(1, 2).reshape(weight.rows, weight.columns)
    if weight.has_scales:
        assert weight.biases is not None
        scales, biases = (t.to(weight.book.dtype).double() for t in (weight.scales, weight.biases))
        dense = dense * scales + biases
    return dense if weight.outliers is None else torch.cat([exact(weight.outliers), dense], dim=1)


def error(result: torch.Tensor, right: torch.Tensor) -> float:
    return float((result.double() - right).norm() / right.norm())


@pytest.mark.parametrize("columns", [256, 1024, 264, 8])
def test_order_of_lanes_round_trip(columns: int) -> None:
    indices = torch.randint(9999, (3, columns))
    lanes = in_lanes(indices)
    assert lanes.shape == (3, -(-columns // 256), 32, 8)
    assert torch.equal(in_columns(lanes, columns), indices)


@pytest.mark.parametrize(("bits", "tail"), [(9, 0), (16, 0), (17, 1), (24, 1), (25, 2), (32, 2)])
def test_packing_round_trip(bits: int, tail: int) -> None:
    numbers = torch.randint(1 << bits, (64,))
    numbers[:2] = torch.tensor([0, (1 << bits) - 1])
    low, rest = packed(numbers, bits)
    assert (rest.element_size() if rest.numel() else 0) == tail
    assert torch.equal(unpacked(low, rest), numbers)


@pytest.mark.parametrize(
    ("entries", "extra", "turns"),
    [(4096, 0, 2.25), (4096, 7872, 1.15), (8192, 3776, 1.85), (8192, 1728, 2.05)],
)
def test_arranged_look_ups_are_the_same_and_meet_less(
    entries: int, extra: int, turns: float
) -> None:
    lanes = in_lanes(torch.randint(entries, (64, 1024)))
    book = torch.arange(entries).unsqueeze(1)
    chosen, swapped = arranged(lanes, entries, extra)
    whole = with_copies(book, extra)
    assert len(whole) == entries + extra
    assert torch.equal(swapped_steps(whole[chosen, 0], swapped), lanes)
    assert torch.equal(swapped[..., 0::2], swapped[..., 1::2])
    assert emulated_vptq.turns(lanes) > 2.4
    assert emulated_vptq.turns(chosen) < turns


def test_copies_of_an_entry_are_in_different_banks() -> None:
    groups = places(torch.arange(4096), 4096, 8192) % 8
    assert groups.shape == (4096, 3)
    assert all((groups[:, a] != groups[:, b]).all() for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize(
    ("entries", "bits", "extra"),
    [
        *(((4096, 256), 21, 7872), ((4096, 512), 22, 5824)),
        *(((8192, 256), 22, 3776), ((8192, 512), 23, 1728)),
        *(((65536, 256), 24, 0), ((4096, 4096), 24, 0), ((4100, 256), 22, 0), ((256, 0), 9, 512)),
    ],
)
def test_copies_fill_shared_memory_and_the_bits_of_indices(
    entries: tuple[int, int], bits: int, extra: int
) -> None:
    assert extra_entries(*entries, bits, H200_BYTES) == extra


@pytest.mark.parametrize(
    ("entries", "vector", "tokens"),
    [((4096, 256), 8, 1), ((8192, 512), 8, 16), ((256, 0), 8, 3), ((65536, 65536), 4, 9)],
)
def test_the_kernels_arithmetic(entries: tuple[int, int], vector: int, tokens: int) -> None:
    weight = vector_weight(2 * vector, 264, entries, vector)
    (part,) = parts_of(prepared(weight))
    x = torch.randn(tokens, 264)
    assert error(emulated_vptq.product(x, part), x.double() @ exact(weight).t()) < 1e-6


def test_the_kernels_arithmetic_with_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.kernels.products.vptq_prepared.LEAST_TO_SPREAD", 1)
    weight = vector_weight(16, 512)
    (part,) = parts_of(prepared(weight, H200_BYTES))
    assert part.main.shape == (4096 + 7872, 1, 8)
    x = torch.randn(2, 512)
    assert error(emulated_vptq.product(x, part), x.double() @ exact(weight).t()) < 1e-6
    assert torch.allclose(part.dense(0, 2, 512, torch.float64), exact(weight))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("entries", [(256, 0), (4096, 256), (65536, 512)])
@pytest.mark.parametrize("vector", [4, 8])
def test_the_plain_product(norm: bool, entries: tuple[int, int], vector: int) -> None:
    weight = vector_weight(48, 72, entries, vector, norm)
    product = VptqUnpack()
    x = torch.randn(5, 72).to(torch.bfloat16)
    for options in product.options(48, 72, 5):
        result = product.multiply(Inputs(x), product.prepare(weight), options)
        assert result.dtype == torch.bfloat16
        assert error(result, x.double() @ exact(weight).t()) < 0.005


def test_outlier_columns_come_first_and_have_codebooks_of_their_own() -> None:
    outliers = vector_weight(48, 16, (256, 0), 4)
    weight = replace(vector_weight(48, 72, norm=True), outliers=outliers)
    x = torch.randn(3, 88, dtype=torch.float64)
    product = VptqUnpack()
    result = product.multiply(Inputs(x), product.prepare(weight), (("ROWS", 16),))
    # Scales of outlier columns are stored in 16 bit; theirs are 1 where the format has none.
    assert error(result, x @ exact(weight).t()) < 1e-9


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"main": torch.zeros(256, 6, dtype=torch.float16)}, "vectors of 4 or 8"),
        ({"main": torch.zeros(256, 8)}, "16-bit floats"),
        ({"residual": None}, "do not belong together"),
        ({"residual": torch.zeros(256, 4, dtype=torch.bfloat16)}, "differ in length"),
        ({"columns": 260}, "no multiple of 8"),
    ],
)
def test_refusals(change: dict[str, torch.Tensor], reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        prepared(replace(vector_weight(), **change))


def test_other_weights_and_machines_are_refused() -> None:
    with pytest.raises(Unusable, match="vector-quantized"):
        prepared(Weight(torch.zeros(8, 8, dtype=torch.int8), torch.ones(8, 1), 8, 8))
    with pytest.raises(Unusable, match="NVIDIA GPU"):
        VptqFewTokens().prepare(vector_weight())


@pytest.mark.parametrize(
    ("entries", "tokens", "main", "residual", "copies", "resident"),
    [
        ((4096, 256), 1, SHARED, SHARED, 8, 2),
        ((4096, 256), 16, SHARED, SHARED, 8, 1),
        ((4096, 512), 1, SHARED, SHARED, 4, 2),  # a small layer: two blocks
        ((8192, 512), 1, SHARED, SHARED, 8, 1),
        ((8192, 0), 1, SHARED, NONE, 1, 1),
        ((65536, 256), 16, DIRECT, SHARED, 8, 1),
        ((65536, 65536), 16, DIRECT, DIRECT, 1, 1),
    ],
)
def test_codebooks_are_where_they_fit(
    entries: tuple[int, int], tokens: int, main: int, residual: int, copies: int, resident: int
) -> None:
    (part,) = parts_of(prepared(vector_weight(8, 256, entries)))
    variant = variant_of(part, tokens, 16, False, H200_BYTES, torch.bfloat16)
    found = (variant.main, variant.residual, variant.copies, variant.resident)
    assert found == (main, residual, copies, resident)
    assert variant.warps == 16
    assert (variant.shared_bytes(*entries) + 1024) * resident <= H200_BYTES + 1024


def test_fewer_warps_where_so_many_do_not_fit() -> None:
    (part,) = parts_of(prepared(vector_weight(8, 256, (65536, 65536))))
    assert variant_of(part, 1, 32, False, H200_BYTES, torch.bfloat16).warps == 16
    with pytest.raises(Unusable, match="shared memory"):
        variant_of(part, 1, 32, False, 1 << 10, torch.bfloat16)


def test_candidates_are_launchable() -> None:
    for columns in (1024, 4096, 16384):
        candidates = VptqFewTokens().options(4096, columns, 1)
        assert len(set(candidates)) == len(candidates)
        for options in candidates:
            chosen = dict(options)
            blocks = columns // 256
            assert chosen["WARPS"] % chosen["SHARE"] == 0
            assert chosen["SHARE"] <= blocks
            assert share_of(chosen["WARPS"], blocks, chosen["SHARE"]) == chosen["SHARE"]


def test_few_rows_are_shared_by_many_warps_and_many_rows_by_few() -> None:
    assert best_shares(128, 64, 16)[0] == 16
    assert best_shares(6656, 4, 16)[0] <= 2


def test_a_thread_unpacks_two_neighbouring_columns() -> None:
    """The kernel's own expressions, against the order in which indices are packed."""
    lane_of, column_of = (
        re.search(rf"const int {name} = (.*);", vptq_unpack.SOURCE) for name in ("lane", "k")
    )
    assert lane_of is not None
    assert column_of is not None
    seen = []
    for thread in range(vptq_unpack.THREADS):
        values = {"block": 0, "step": thread // 16, "pair": thread % 16}
        lane, column = (int(eval(found[1], {}, values)) for found in (lane_of, column_of))
        packed_columns = 32 * values["step"] + lane_columns()[lane : lane + 2]
        assert packed_columns.tolist() == [column, column + 1]
        seen += packed_columns.tolist()
    assert sorted(seen) == list(range(COLUMNS))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_source_compiles(dtype: str) -> None:
    """With NVRTC where it is installed; it needs no GPU."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in Path(folder).rglob("libnvrtc.so.1[23]")]
    if not files:
        pytest.skip("NVRTC is not installed")
    library = ctypes.CDLL(str(files[0]))
    for variant in (
        Variant(16, 1, 1, 8, SHARED, SHARED, 8, False, dtype),
        Variant(8, 16, 2, 4, DIRECT, DIRECT, 1, True, dtype),
        UnpackVariant(1, 8, True, True, True, dtype),
        UnpackVariant(0, 4, False, False, False, dtype),
        UnpackVariant(2, 8, True, False, True, dtype),
    ):
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        source, name = variant.source().encode(), NAME.encode()
        library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None)
        options = (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_90")
        code = library.nvrtcCompileProgram(program, 1, options)
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        assert code == 0, log.value.decode()


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 2, 8, 9, 16])
@pytest.mark.parametrize(
    ("entries", "vector"),
    [
        *(((4096, 256), 8), ((8192, 512), 8), ((256, 0), 8), ((4096, 256), 4)),
        *(((65536, 256), 8), ((65536, 65536), 8), ((65536, 0), 4)),
    ],
)
@pytest.mark.parametrize("norm", [False, True])
def test_every_candidate_on_a_gpu(
    tokens: int, entries: tuple[int, int], vector: int, norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.kernels.products.vptq_prepared.LEAST_TO_SPREAD", 1)
    rows, columns = 1096, 2312
    weight = on_gpu(vector_weight(rows, columns, entries, vector, norm, torch.float16))
    weight = replace(weight, outliers=on_gpu(vector_weight(rows, 24, (256, 0), vector, False)))
    weight = replace(weight, outliers=None) if norm else weight
    assert weight.outliers is None or weight.outliers.main is not None
    product = VptqFewTokens()
    x = torch.randn(tokens, columns + (0 if norm else 24), device="cuda").to(weight.book.dtype)
    if weight.outliers is not None:
        outlier_book = weight.outliers.book.to(weight.book.dtype)
        weight = replace(weight, outliers=replace(weight.outliers, main=outlier_book))
    right = x.double() @ exact(weight).t()
    tensors = product.prepare(weight)
    for options in product.options(rows, columns, tokens):
        first = product.multiply(Inputs(x), tensors, options)
        assert error(first, right) < 0.003, options
        assert torch.equal(first, product.multiply(Inputs(x), tensors, options))


def on_gpu(weight: VectorWeight) -> VectorWeight:
    names = ("codes", "scales", "main", "residual", "residual_codes", "biases")
    tensors = {name: getattr(weight, name) for name in names}
    return replace(weight, **{n: None if t is None else t.cuda() for n, t in tensors.items()})
