"""2:4 products through cuSPARSELt, as PyTorch offers it.

Weights are compressed at load: 10/16 of the bytes. PyTorch (to 2.11 at least) makes descriptors
and a plan for every call: 50 to 200 microseconds on the host, which a CUDA graph replays for free
and a long product hides. In between, outside of graphs, the host is what a step waits for: so plans
are made once (`cusparselt`).
"""

from typing import ClassVar

import torch

from serve.kernels.products.few_tokens import FP8
from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.sparse.cusparselt import Problem, library_of, planned_product

TOKENS_TOGETHER = 16
ROWS_TOGETHER, COLUMNS_TOGETHER = 32, 64
ROWS_CHECKED_AT_ONCE = 4096
ALGORITHMS = 12
"""Numbers to try; cuSPARSELt refuses those that it does not have for a shape."""
HEURISTIC, ONE_KERNEL, STREAM_K = -1, 1, 6
"""How columns are split over programs, as cuSPARSELt numbers it; -1 leaves it to the library."""
MOST_SPLIT_TOKENS = 256


def is_sparse24(codes: torch.Tensor) -> bool:
    """At most two of four neighbours in a row are not zero; looks at some rows at a time."""
    bits = codes.view(torch.int8)
    for part in bits.split(ROWS_CHECKED_AT_ONCE):
        values = part & 0x7F if codes.is_floating_point() else part  # -0.0 is zero
        used = (values.reshape(-1, 4) != 0).sum(-1, dtype=torch.int8)
        if bool((used > 2).any()):
            return False
    return True


def check_sparse(weight: Weight, dtype: torch.dtype) -> None:
    """Raises Unusable where a 2:4 product of this type cannot run the layer."""
    if weight.codes.dtype != dtype:
        raise Unusable(f"weights are {weight.codes.dtype}, not {dtype}")
    if weight.group_size is not None or weight.zeros is not None:
        raise Unusable("takes one scale for each row and no zero points")
    if weight.rows % ROWS_TOGETHER or weight.columns % COLUMNS_TOGETHER:
        shape = f"{weight.rows} x {weight.columns}"
        raise Unusable(f"{shape} is no multiple of {ROWS_TOGETHER} x {COLUMNS_TOGETHER}")
    if not (weight.sparse and is_sparse24(weight.codes)):
        raise Unusable("weights are not 2:4 sparse")


def padded(rounded: torch.Tensor) -> torch.Tensor:
    """Whole sixteens of tokens, without a copy where they are; the added rows hold anything."""
    tokens, columns = rounded.shape
    added = -tokens % TOKENS_TOGETHER
    if not added:
        return rounded.contiguous()
    rows = tokens + added
    buffer = torch.empty((rows, columns), dtype=torch.int8, device=rounded.device)
    buffer[:tokens].copy_(rounded.view(torch.int8))
    return buffer.view(rounded.dtype)


def product_of(
    compressed: torch.Tensor,
    x: torch.Tensor,
    row_scales: torch.Tensor | None,
    dtype: torch.dtype,
    asked: dict[str, int],
) -> torch.Tensor:
    """[tokens, N] by a plan of ours, or by PyTorch's call where the library is unknown to us."""
    algorithm, split, mode = asked["ALGORITHM"], asked["SPLIT"], asked["MODE"]
    device, (tokens, columns) = x.get_device(), x.shape
    lt = library_of(device) if asked["PLANNED"] else None
    if lt is None:
        return torch._cslt_sparse_mm(
            compressed, x.t(), None, row_scales, dtype, True, algorithm, split, mode
        )
    problem = Problem(
        device, compressed.shape[0], columns, tokens, x.dtype, dtype, algorithm, split, mode,
        row_scales is not None,
    )  # fmt: skip
    return planned_product(lt, problem, compressed, x, row_scales)


def options_for(algorithm: int, parts: int, mode: int, scales_rows: bool) -> Options:
    return options_of(
        ALGORITHM=algorithm, SPLIT=parts, MODE=mode, ROW_SCALES=int(scales_rows), PLANNED=1
    )


class SparseLt(Product):
    """Activations are rounded. `Inputs.scales` may be None: then the caller multiplies by them."""

    reads_rounded = True
    scales_after = True
    weight_dtype: ClassVar[torch.dtype]
    scales_rows: ClassVar[bool]
    """cuSPARSELt can multiply by the scales of the rows; else a kernel after it does."""
    parts: ClassVar[tuple[int, ...]]
    """Into how many the columns can be split."""

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        ways = [(number, 1, HEURISTIC) for number in range(ALGORITHMS)]
        if tokens <= MOST_SPLIT_TOKENS:
            ways += [(number, 1, STREAM_K) for number in range(ALGORITHMS // 2)]
            ways += [(number, parts, ONE_KERNEL) for parts in self.parts for number in range(3)]
        found = [options_for(*way, self.scales_rows) for way in ways]
        return [*found, options_for(0, 1, HEURISTIC, False)] if self.scales_rows else found

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        check_sparse(weight, self.weight_dtype)
        codes = weight.codes.contiguous()
        try:
            compressed = torch._cslt_compress(codes)
        except (RuntimeError, NotImplementedError) as failure:
            raise Unusable(f"cuSPARSELt: {str(failure).splitlines()[0]}") from failure
        scales = weight.scales.float().reshape(-1).expand(weight.rows).contiguous()
        # PyTorch takes the number of rows from the first size.
        return [compressed.view(weight.rows, -1), scales]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        compressed, scales = tensors
        assert inputs.rounded is not None
        asked, tokens = dict(options), inputs.rounded.shape[0]
        x = padded(inputs.rounded)
        inside = bool(asked["ROW_SCALES"])
        dtype = inputs.plain.dtype if inside else torch.bfloat16  # sums exceed float16
        sums = product_of(compressed, x, scales if inside else None, dtype, asked)
        if inside and inputs.scales is None:
            return sums if x is inputs.rounded else sums[:tokens]
        from serve.kernels.products.triton_kernels.scale import scaled

        outside = None if inside else scales
        return scaled(sums, inputs.scales, outside, tokens, inputs.plain.dtype)


class SparseLtInt8(SparseLt):
    name = "sparse_lt_int8"
    weight_dtype = torch.int8
    scales_rows = True
    parts = (2, 4)


class SparseLtFp8(SparseLt):
    """cuSPARSELt 0.8 says: "Alpha/beta vector scaling is only supported in INT8 input, INT32
    compute kernels" (status 10), and "On SM90 the splitK value must be either 1 or -1"."""

    name = "sparse_lt_fp8"
    weight_dtype = FP8
    scales_rows = False
    parts = ()
