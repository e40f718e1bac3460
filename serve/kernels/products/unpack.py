"""Weight-only products of many tokens: unpack some rows into a scratch, multiply, go on.

The scratch of some thousand rows stays in the L2 cache, so unpacked weights never cost the memory's
time. The product itself is cuBLAS's.
"""

from collections.abc import Iterator

import torch

from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight

FEWEST_TOKENS = 128
ALL_ROWS = 0
ROWS_AT_ONCE = (2048, 4096, 1024, ALL_ROWS)
LARGEST_FP8 = 448.0


def check_packed(weight: Weight, bits: tuple[int, ...]) -> None:
    """Raises Unusable where the words of a layer cannot be unpacked."""
    if weight.codes.dtype != torch.int32 or weight.bits not in bits:
        raise Unusable(f"takes packed integers of {' or '.join(map(str, bits))} bits")
    if weight.codes.shape[1] * 32 != weight.columns * weight.bits:
        raise Unusable(f"{weight.columns} columns do not fill whole words")
    if (weight.group_size or weight.columns) % (32 // weight.bits):
        raise Unusable(f"groups of {weight.group_size} do not fill whole words")


def chunks(rows: int, options: Options) -> range:
    """Where each chunk of rows begins."""
    return range(0, rows, dict(options)["ROWS"] or rows)


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """The results of all chunks."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def scales_of(inputs: Inputs) -> torch.Tensor:
    """Of the tokens; ones where the caller applies them."""
    if inputs.scales is not None:
        return inputs.scales
    return torch.ones((inputs.plain.shape[0], 1), dtype=torch.float32, device=inputs.plain.device)


def parts_in_graph(
    words: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    x: torch.Tensor,
    options: Options,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Each chunk of rows and its weights, where a graph is traced. Inductor gives the memory of one
    chunk to the next."""
    from serve.kernels.products.triton_kernels.unpack import unpacked_in_graph

    starts = chunks(words.shape[0], options)
    for start in starts:
        here = slice(start, min(start + starts.step, words.shape[0]))
        scratch = x.new_empty((here.stop - start, x.shape[1]))
        points = None if zeros is None else zeros[here]
        yield here, unpacked_in_graph(words[here], scales[here], points, scratch)


class Unpack(Product):
    """INT4 or INT8 words, symmetric or with zero points, groups or channels."""

    name = "unpack"
    fewest = FEWEST_TOKENS
    traceable = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [options_of(ROWS=count) for count in ROWS_AT_ONCE if count < rows]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        check_packed(weight, (4, 8))
        words, scales = weight.codes.contiguous(), weight.scales.contiguous()
        if weight.zeros is None:
            return [words, scales]
        return [words, scales, weight.zeros.to(torch.uint8).contiguous()]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        from serve.kernels.products.triton_kernels.unpack import unpacked

        words, scales = tensors[:2]
        zeros = tensors[2] if len(tensors) > 2 else None
        x, rows = inputs.plain, words.shape[0]
        out = torch.empty((x.shape[0], rows), dtype=x.dtype, device=x.device)
        starts = chunks(rows, options)
        scratch = torch.empty((min(starts.step, rows), x.shape[1]), dtype=x.dtype, device=x.device)
        for start in starts:
            here = slice(start, min(start + starts.step, rows))
            weights = unpacked(
                words[here],
                scales[here],
                None if zeros is None else zeros[here],
                scratch[: here.stop - start],
            )
            torch.mm(x, weights.t(), out=out[:, here])
        return out

    def direct(self, inputs: Inputs, tensors: list[torch.Tensor], options: Options) -> torch.Tensor:
        words, scales, *zeros = tensors
        parts = parts_in_graph(words, scales, zeros[0] if zeros else None, inputs.plain, options)
        return joined([torch.mm(inputs.plain, weights.t()) for _, weights in parts])


class UnpackFp8(Product):
    """INT4 words with group scales, FP8 activations: FP8 weights in the scratch.

    A row's scale is that of its largest group, so that eight times it is FP8's largest number. The
    weights of other groups are relative to it.
    """

    name = "unpack_fp8"
    fewest = 17
    reads_rounded = True
    traceable = True
    tolerance = 0.04  # FP8 rounds weights by 2.6 % (root mean square)

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [options_of(ROWS=count) for count in (ALL_ROWS, 4096, 8192) if count < rows]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        check_packed(weight, (4,))
        if weight.zeros is not None:
            raise Unusable("takes symmetric weights only")
        scales = weight.scales.float()
        largest = scales.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        by_row = largest * (1 << (weight.bits - 1)) / LARGEST_FP8
        return [weight.codes.contiguous(), (scales / by_row).contiguous(), by_row.t().contiguous()]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        from serve.kernels.products.triton_kernels.unpack import unpacked

        words, relative, by_row = tensors
        x, rows = inputs.rounded, words.shape[0]
        assert x is not None
        token_scales = scales_of(inputs)
        starts = chunks(rows, options)
        scratch = torch.empty((min(starts.step, rows), x.shape[1]), dtype=x.dtype, device=x.device)
        parts = []
        for start in starts:
            here = slice(start, min(start + starts.step, rows))
            weights = unpacked(words[here], relative[here], None, scratch[: here.stop - start])
            parts.append(
                torch._scaled_mm(
                    x, weights.t(), token_scales, by_row[:, here], out_dtype=inputs.plain.dtype
                )
            )
        return joined(parts)

    def direct(self, inputs: Inputs, tensors: list[torch.Tensor], options: Options) -> torch.Tensor:
        words, relative, by_row = tensors
        x, token_scales, dtype = inputs.rounded, scales_of(inputs), inputs.plain.dtype
        assert x is not None
        return joined(
            [
                torch._scaled_mm(x, weights.t(), token_scales, by_row[:, here], out_dtype=dtype)
                for here, weights in parts_in_graph(words, relative, None, x, options)
            ]
        )
