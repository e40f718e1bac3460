"""vLLM's ops of a GPU in plain PyTorch on the CPU, and layers that products run with them."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from serve.kernels.products.cublas import CublasFp8
from serve.kernels.products.from_vllm.packed import CutlassW4A8, Machete, Marlin
from serve.kernels.products.from_vllm.scaled import CutlassFp8, CutlassInt8
from serve.kernels.products.product import Inputs, Options, Product, Weight

ROWS, COLUMNS, GROUP = 128, 256, 128
FP8 = torch.float8_e4m3fn
Op = Callable[..., torch.Tensor | list[str] | None]


def cutlass_scaled_mm(
    out: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    out.copy_((a.float() @ b.float()) * a_scales * b_scales.view(1, -1))


def marlin_gemm(
    a: torch.Tensor, c: None, words: torch.Tensor, bias: None, scales: torch.Tensor, *others: object
) -> torch.Tensor:
    return (a.float() @ _dense(words, scales)).to(a.dtype)


def machete_mm(
    a: torch.Tensor, words: torch.Tensor, kind: int, out_type: None, scales: torch.Tensor,
    *others: object,
) -> torch.Tensor:  # fmt: skip
    return (a.float() @ _dense(words, scales)).to(a.dtype)


def machete_supported_schedules(*types: object) -> list[str]:
    return ["128x64_1x1x1", "128x128_1x1x1"]


def cutlass_w4a8_mm(
    a: torch.Tensor, words: torch.Tensor, group_scales: torch.Tensor, group_size: int,
    row_scales: torch.Tensor, token_scales: torch.Tensor, *others: object,
) -> torch.Tensor:  # fmt: skip
    sums = a.float() @ _dense(words, group_scales.float())
    return (sums * row_scales.t() * token_scales).to(torch.bfloat16)


def _dense(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Some [K, N] that depends on all numbers: no kernel's layout is reproduced here."""
    values = words.reshape(-1).repeat_interleave(8)[: ROWS * COLUMNS].view(COLUMNS, ROWS)
    return values.float() * scales.float().repeat_interleave(GROUP, 0)


# fmt: off
OPS: dict[str, Op] = {
    "cutlass_scaled_mm(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales,"
    " Tensor? bias) -> ()": cutlass_scaled_mm,
    "marlin_gemm(Tensor a, Tensor? c, Tensor b, Tensor? bias, Tensor b_scales, Tensor? a_scales,"
    " Tensor? global_scale, Tensor? b_zeros, Tensor workspace, int b_type, SymInt size_m,"
    " SymInt size_n, SymInt size_k, bool atomic, bool reduce, bool zeros) -> Tensor": marlin_gemm,
    "machete_mm(Tensor a, Tensor b, int b_type, ScalarType? out_type, Tensor? group_scales,"
    " Tensor? group_zeros, int? group_size, Tensor? channel_scales, Tensor? token_scales,"
    " str? schedule) -> Tensor": machete_mm,
    "machete_supported_schedules(ScalarType a_type, int b_type, ScalarType? group_scales_type,"
    " ScalarType? group_zeros_type, ScalarType? channel_scales_type,"
    " ScalarType? token_scales_type, ScalarType? out_type) -> str[]": machete_supported_schedules,
    "cutlass_w4a8_mm(Tensor a, Tensor b, Tensor group_scales, int group_size,"
    " Tensor channel_scales, Tensor token_scales, ScalarType? out_type, str? schedule)"
    " -> Tensor": cutlass_w4a8_mm,
}
# fmt: on


@contextmanager
def ops_on_cpu() -> Iterator[None]:
    """Defines what the installed vLLM was built without, for as long as it is needed."""
    importlib.import_module("vllm._custom_ops")  # describes the ops that it finds
    library = torch.library.Library("_C", "FRAGMENT")
    for schema, function in OPS.items():
        name, takes_tensors = schema.partition("(")[0], "Tensor" in schema
        if not hasattr(torch.ops._C, name):
            library.define(schema)
            if takes_tensors:
                library._register_fake(name, function)
        library.impl(name, function, "CPU" if takes_tensors else "CompositeExplicitAutograd")
    try:
        yield
    finally:
        for schema in OPS:
            torch.ops._C.__dict__.pop(schema.partition("(")[0], None)
        library._destroy()


@dataclass(frozen=True)
class Case:
    """A layer of one product."""

    product: Product
    tensors: list[torch.Tensor]
    options: Options = ()

    def inputs(self, tokens: int) -> Inputs:
        generator = torch.Generator().manual_seed(tokens)
        plain = torch.randn(tokens, COLUMNS, generator=generator).to(torch.bfloat16)
        if not self.product.reads_rounded:
            return Inputs(plain)
        scales = torch.rand(tokens, 1, generator=generator) + 0.5
        codes = plain.float() * 40
        rounded = codes.to(torch.int8 if isinstance(self.product, CutlassInt8) else FP8)
        return Inputs(plain[:, :0], rounded, scales)


def cases() -> list[Case]:
    """One for each product that runs ops of PyTorch or vLLM."""
    torch.manual_seed(0)
    codes = torch.randint(-127, 128, (ROWS, COLUMNS), dtype=torch.int8)
    scales = torch.rand(ROWS, 1) * 0.01 + 0.001
    int8, fp8 = (Weight(codes.to(dtype), scales, 8, COLUMNS) for dtype in (torch.int8, FP8))
    groups = torch.rand(COLUMNS // GROUP, ROWS).to(torch.bfloat16)
    words = torch.randint(-100, 100, (COLUMNS // 8, ROWS), dtype=torch.int32)
    empty, workspace = (torch.zeros(size, dtype=torch.int32) for size in (0, 8))
    return [
        *(Case(one, one.prepare(int8)) for one in [CutlassInt8()]),
        *(Case(one, one.prepare(fp8)) for one in (CutlassFp8(), CublasFp8())),
        Case(Marlin(), [words.view(COLUMNS // 16, -1), groups, empty, workspace]),
        Case(Machete(), [words, groups], (("schedule", 1),)),
        Case(CutlassW4A8(), [words, groups.to(FP8), scales], (("schedule", 2),)),
    ]
