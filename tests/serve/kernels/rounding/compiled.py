"""Compiles the kernels that round for Hopper, without a GPU; prints what each thread block loads of
16-bit activations and weights, in bytes, and what spills. Triton must not interpret here."""

import json
import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from serve.kernels.products.triton_kernels.rounding import (
    add_norm_round_kernel,
    round_kernel,
    silu_mul_round_kernel,
)
from serve.kernels.rounding.launch import cut_of

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    "x_ptr": "*bf16", "residual_ptr": "*bf16", "weight_ptr": "*bf16", "sum_ptr": "*bf16",
    "codes_ptr": "*i8", "x_scales_ptr": "*fp32", "scales_ptr": "*fp32",
}  # fmt: skip
WIDE_LOAD = re.compile(r"ld\.global\.(?:[\w:]+\.)*v(\d)\.b32")


def compiled(kernel: triton.JITFunction, columns: int, codes: str, **constants: object) -> object:
    cut = cut_of(columns)
    values = {"K": columns, "FLOATS": codes != "*i8", **constants, **cut.constants}
    names = kernel.arg_names
    types = {**POINTERS, "codes_ptr": codes}
    signature = {name: "constexpr" if name in values else types.get(name, "i32") for name in names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if signature[name].startswith("*") or name.endswith("stride")
    }
    source = ASTSource(
        kernel, signature, {(names.index(name),): value for name, value in values.items()}, aligned
    )
    return triton.compile(source, target=HOPPER, options={"num_warps": cut.warps})


def say(name: str, kernel: triton.JITFunction, columns: int, **constants: object) -> None:
    compiled(kernel, columns, "*fp8e4nv", **constants)
    result: object = compiled(kernel, columns, "*i8", **constants)
    asm = result.asm["ptx"]  # type: ignore[attr-defined]
    words = sum(int(width) for width in WIDE_LOAD.findall(asm))
    threads = 32 * cut_of(columns).warps
    print(json.dumps({"name": name, "bytes": 4 * words * threads, "spills": asm.count(".local")}))


if __name__ == "__main__":
    say("round", round_kernel, 4096)
    say("norm", add_norm_round_kernel, 4096, EPSILON=1e-6, SCALED=False)
    say("silu", silu_mul_round_kernel, 12288, SCALED=False)
