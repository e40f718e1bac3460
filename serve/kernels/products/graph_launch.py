"""Triton kernels as ops of a graph: Inductor launches them as its own."""

from functools import cache
from typing import Any


@cache
def with_warps(kernel: Any, warps: int) -> Any:
    """A kernel that is always launched with so many warps."""
    import triton

    return triton.autotune(configs=[triton.Config({}, num_warps=warps)], key=[])(kernel)


def launch_options(
    kernel: Any,
    grid: tuple[Any, ...],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    constants: dict[str, Any],
) -> dict[str, Any]:
    """Arguments of PyTorch's op for a kernel that fills `outputs`; by the names of the kernel's
    arguments. Tensors may be nodes of a graph."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return {
        "kernel_idx": kernel_side_table.add_kernel(kernel),
        "constant_args_idx": kernel_side_table.add_constant_args(constants),
        "grid": [grid],
        "tma_descriptor_metadata": {},
        "kwargs": {**inputs, **outputs},
        "tensors_to_clone": list(outputs),
    }
