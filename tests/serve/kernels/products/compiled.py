"""Compiles our kernels for Hopper, without a GPU, and prints where their instructions stand.

A process of its own, as Triton must not interpret here.
"""

import json
import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

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


def compiled(
    kernel: triton.JITFunction,
    constants: dict[str, int],
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
    options = {"num_warps": 2, "num_stages": 3, "launch_pdl": True}
    return triton.compile(source, target=HOPPER, options=options)


def say(name: str, kernel: triton.compiler.CompiledKernel) -> None:
    lines = kernel.asm["ptx"].splitlines()
    places = {
        "prefetch": [n for n, line in enumerate(lines) if "prefetch.global.L2 [" in line],
        "wait": [n for n, line in enumerate(lines) if "griddepcontrol.wait" in line],
        "memory": [n for n, line in enumerate(lines) if MEMORY.search(line)],
    }
    print(json.dumps({"name": name, **places}), flush=True)


if __name__ == "__main__":
    dense = {**TENSOR_CORES, "K": 1024, "KIND": 0, "EVEN": True, "BLOCK_K": 128}
    say("few_tokens", compiled(few_tokens_kernel, dense))
    groups = {**TENSOR_CORES, "GROUPS": 64, "BLOCKS": 4, "FLOATS": False}
    say("sparse_few_tokens", compiled(sparse_kernel, groups, x_ptr="*i32"))
    vector = {**SHARED, "K": 1024, "EVEN": True, "BLOCK_K": 256}
    say("one_token", compiled(one_token_kernel, vector, x_ptr="*bf16"))
