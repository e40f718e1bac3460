"""Compiles the kernels of attention for Hopper, without a GPU; prints what spills, and whether the
older tokens are asked for before the kernel in front has ended. Triton must not interpret here."""

import json

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from serve.kernels.attention.triton_kernels.decode import decode_attention_kernel
from serve.kernels.attention.triton_kernels.rope import rope_kernel
from serve.kernels.attention.triton_kernels.store import store_attention_kernel

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    "table_ptr": "*i32", "lengths_ptr": "*i32", "slots_ptr": "*i64", "positions_ptr": "*i64",
    "parts_ptr": "*fp32", "counter_ptr": "*i32", "scale": "fp32", "eps": "fp32",
}  # fmt: skip


def say(
    name: str, kernel: triton.JITFunction, warps: int, stages: int = 2, **constants: object
) -> None:
    names = kernel.arg_names
    signature = {
        argument: "constexpr"
        if argument in constants
        else POINTERS.get(argument, "*bf16" if argument.endswith("_ptr") else "i32")
        for argument in names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, argument in enumerate(names)
        if signature[argument].startswith("*") or argument.endswith("stride")
    }
    values = {(names.index(argument),): value for argument, value in constants.items()}
    options = {"num_warps": warps, "num_stages": stages, "launch_pdl": bool(constants.get("PDL"))}
    source = ASTSource(kernel, signature, values, aligned)
    lines = triton.compile(source, target=HOPPER, options=options).asm["ptx"].splitlines()
    wait = [n for n, line in enumerate(lines) if "griddepcontrol.wait" in line]
    loads = [n for n, line in enumerate(lines) if "ld.global" in line and ".v4" in line]
    early = sum(load < wait[0] for load in loads) if wait else 0
    spills = sum(".local" in line for line in lines)
    print(json.dumps({"name": name, "spills": spills, "wide loads": len(loads), "early": early}))


if __name__ == "__main__":
    shape = {"PAGE": 16, "GROUP": 4, "MEMBERS": 4, "ROWS": 16, "WIDTH": 128}
    fused = {**shape, "NORM": True, "ROPE": True, "INTERPRETED": False}
    say("few", decode_attention_kernel, 2, 3, **fused, TOKENS=64, JOINS=True, AT_ONCE=16, PDL=1)
    say("many", decode_attention_kernel, 1, 2, **fused, TOKENS=32, JOINS=False, AT_ONCE=1, PDL=0)
    say("rope", rope_kernel, 2, HEADS=32, KEYS=8, ROWS=8, WIDTH=128, NORM=True)
    say("store", store_attention_kernel, 4, PAGE=16, HEADS=8, WIDTH=128, TOKENS=16)
