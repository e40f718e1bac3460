"""Compiles our kernels for Hopper, without a GPU, and prints where their instructions stand.

A process of its own, as Triton must not interpret here.
"""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from serve.kernels.products.batched import Batched
from serve.kernels.products.triton_kernels.batched import batched_kernel
from serve.kernels.products.triton_kernels.few_tokens import few_tokens_kernel
from serve.kernels.products.triton_kernels.one_token import one_token_kernel
from serve.kernels.products.triton_kernels.sparse import sparse_kernel

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    "x_ptr": "*i8", "x_scale_ptr": "*fp32", "w_ptr": "*i8", "w_scale_ptr": "*fp32",
    "out_ptr": "*bf16", "parts_ptr": "*i32", "counter_ptr": "*i32",
}  # fmt: skip
SHARED = {"BLOCK_N": 32, "PDL": 2, "INTERPRETED": False}
TENSOR_CORES = {**SHARED, "SCALED": True, "TOKENS": 16, "SPLIT": 2}
MEMORY = re.compile(r"(ld|st|cp\.async|atom)\.[\w.:]*global")

FROM_REGISTERS = re.compile(r"wgmma\.mma_async\S* \{[^}]*\}, \{[^}]*\}, ")
"""The first operand is in registers."""


def compiled(
    kernel: triton.JITFunction,
    constants: dict[str, int],
    launch: Mapping[str, int] = MappingProxyType({"num_warps": 2, "num_stages": 3}),
    **types: str,
) -> triton.compiler.CompiledKernel:
    """A kernel for Hopper."""
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else {**POINTERS, **types}.get(name, "i32")
        for name in names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if signature[name].startswith("*")
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, values, aligned)
    options = {**launch, "launch_pdl": True}
    return triton.compile(source, target=HOPPER, options=options)


def say(name: str, kernel: triton.compiler.CompiledKernel) -> None:
    lines = kernel.asm["ptx"].splitlines()
    places = {
        "shared": [kernel.metadata.shared],
        "prefetch": [n for n, line in enumerate(lines) if "prefetch.global.L2 [" in line],
        "wait": [n for n, line in enumerate(lines) if "griddepcontrol.wait" in line],
        "memory": [n for n, line in enumerate(lines) if MEMORY.search(line)],
        "products": [n for n, line in enumerate(lines) if "wgmma.mma_async" in line],
        "from registers": [n for n, line in enumerate(lines) if FROM_REGISTERS.search(line)],
    }
    print(json.dumps({"name": name, **places}), flush=True)


if __name__ == "__main__":
    dense = {**TENSOR_CORES, "K": 1024, "KIND": 0, "EVEN": True, "BLOCK_K": 128}
    say("few_tokens", compiled(few_tokens_kernel, dense))
    groups = {**TENSOR_CORES, "GROUPS": 64, "BLOCKS": 4, "FLOATS": False}
    say("sparse_few_tokens", compiled(sparse_kernel, groups, x_ptr="*i32"))
    vector = {**SHARED, "K": 1024, "EVEN": True, "BLOCK_K": 256}
    say("one_token", compiled(one_token_kernel, vector, x_ptr="*bf16"))
    for bits, tokens in ((4, 64), (8, 64), (8, 256)):
        chosen = dict(Batched().options(4096, 4096, tokens)[1])  # the best guess, with a prefetch
        launch = {name: chosen.pop(name) for name in ("num_warps", "num_stages")}
        packed = {
            **chosen, "K": 4096, "GROUPS": 32, "BITS": bits, "ZEROS": True, "EVEN": True,
            "INTERPRETED": False,
        }  # fmt: skip
        types = {
            "x_ptr": "*bf16", "w_ptr": "*u8", "scale_ptr": "*bf16", "zero_ptr": "*u8",
            "parts_ptr": "*fp32",
        }  # fmt: skip
        kernel = compiled(batched_kernel, packed, launch, **types)
        say(f"batched, {bits} bits, {tokens} tokens", kernel)
