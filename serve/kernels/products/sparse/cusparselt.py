"""cuSPARSELt called directly, with plans that are made once.

PyTorch makes descriptors, an algorithm's selection and a plan for every product, and destroys them
after it. Here a plan is made once for a shape, a number of tokens and an algorithm; all layers of
the shape share it. A call then passes addresses, and makes no object of ctypes. Types and numbers
are those of cusparseLt.h, which are the same in 0.8.0 and 0.8.1; with any other version of the
library PyTorch's own call is used.
"""

import ctypes
from functools import cache
from typing import NamedTuple

import torch

LIBRARY = "libcusparseLt.so.0"
MAJOR_VERSION, MINOR_VERSION = 0, 1
KNOWN_VERSIONS = ((0, 8),)
OPAQUE_BYTES, ALIGNMENT = 512, 16
COLUMN_ORDER, ROW_ORDER = 1, 2
AS_IT_IS, TRANSPOSED = 0, 1
HALF_IS_ZERO = 0
DEFAULT_ALGORITHM = 0
SUMS_INT32, SUMS_FLOAT32 = 0, 2
ALPHA_VECTOR_SCALING = 5
ALGORITHM_NUMBER, SPLIT_K, SPLIT_K_MODE = 0, 3, 4
TYPES = {
    torch.float32: 0,
    torch.float16: 2,
    torch.int8: 3,
    torch.bfloat16: 14,
    torch.float8_e4m3fn: 28,
}
LIBRARY_CHOOSES = -1
MOST_PLANS = 4096
FACTORS = (ctypes.c_float(1.0), ctypes.c_float(0.0))
ONE, NOTHING = (ctypes.addressof(factor) for factor in FACTORS)
"""Addresses of the factors of the product, and of what is added to it."""


class Problem(NamedTuple):
    """What a plan depends on: D [tokens, rows] = X [tokens, columns] times W [rows, columns]. It is
    made in each call."""

    device: int
    rows: int
    columns: int
    tokens: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    algorithm: int
    split: int
    mode: int
    has_row_scales: bool


class Opaque:
    """A structure whose content is the library's own."""

    def __init__(self) -> None:
        # Twice what the header says: the alignment, and a margin.
        self.buffer = ctypes.create_string_buffer(2 * OPAQUE_BYTES + ALIGNMENT)
        start = ctypes.addressof(self.buffer)
        self.address = start + -start % ALIGNMENT
        self.pointer = ctypes.c_void_p(self.address)


class CuSparseLt:
    """The library with a handle of one device."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.handle = Opaque()
        self.call("Init", self.handle)
        self.multiply = library.cusparseLtMatmul
        self.multiply.argtypes = [*[ctypes.c_void_p] * 10, ctypes.c_int32]
        self.streams: dict[int, ctypes.c_void_p] = {}

    def stream_address(self, stream: int) -> int:
        """Where a stream is kept: the library takes a list of them."""
        kept = self.streams.get(stream)
        if kept is None:
            kept = self.streams[stream] = ctypes.c_void_p(stream)
        return ctypes.addressof(kept)

    def call(self, name: str, *arguments: object) -> None:
        pointers = [item.pointer if isinstance(item, Opaque) else item for item in arguments]
        status = getattr(self.library, f"cusparseLt{name}")(*pointers)
        if status:
            raise RuntimeError(f"cusparseLt{name} failed with status {status}")

    def set(self, kind: str, target: Opaque, attribute: int, number: int) -> None:
        """Sets an attribute that is a 32-bit number."""
        value = ctypes.c_int(number)
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self.call(f"{kind}SetAttribute", self.handle, target, attribute, ctypes.byref(value), size)


class Plan:
    """Descriptors stay: the plan refers to them."""

    def __init__(self, lt: CuSparseLt, problem: Problem) -> None:
        self.lt = lt
        self.weight, self.inputs, self.outputs = Opaque(), Opaque(), Opaque()
        self.matmul, self.selection, self.plan = Opaque(), Opaque(), Opaque()
        self.describe(problem)
        lt.call("MatmulAlgSelectionInit", lt.handle, self.selection, self.matmul, DEFAULT_ALGORITHM)
        lt.set("MatmulAlg", self.selection, ALGORITHM_NUMBER, problem.algorithm)
        if problem.split != 1:
            lt.set("MatmulAlg", self.selection, SPLIT_K, problem.split)
        if problem.mode > 0:
            lt.set("MatmulAlg", self.selection, SPLIT_K_MODE, problem.mode)
        lt.call("MatmulPlanInit", lt.handle, self.plan, self.matmul, self.selection)
        size = ctypes.c_size_t()
        lt.call("MatmulGetWorkspace", lt.handle, self.plan, ctypes.byref(size))
        self.workspace_bytes = size.value

    def describe(self, problem: Problem) -> None:
        lt, dtype, out_dtype = self.lt, TYPES[problem.dtype], TYPES[problem.out_dtype]
        rows, columns, tokens = map(ctypes.c_int64, (problem.rows, problem.columns, problem.tokens))
        lt.call(
            "StructuredDescriptorInit", lt.handle, self.weight, rows, columns, columns, ALIGNMENT,
            dtype, ROW_ORDER, HALF_IS_ZERO,
        )  # fmt: skip
        lt.call(
            "DenseDescriptorInit", lt.handle, self.inputs, tokens, columns, columns, ALIGNMENT,
            dtype, ROW_ORDER,
        )  # fmt: skip
        lt.call(
            "DenseDescriptorInit", lt.handle, self.outputs, rows, tokens, rows, ALIGNMENT,
            out_dtype, COLUMN_ORDER,
        )  # fmt: skip
        sums = SUMS_INT32 if problem.dtype == torch.int8 else SUMS_FLOAT32
        lt.call(
            "MatmulDescriptorInit", lt.handle, self.matmul, AS_IT_IS, TRANSPOSED, self.weight,
            self.inputs, self.outputs, self.outputs, sums,
        )  # fmt: skip
        if problem.has_row_scales:
            lt.set("MatmulDesc", self.matmul, ALPHA_VECTOR_SCALING, 1)

    def run(
        self,
        compressed: torch.Tensor,
        x: torch.Tensor,
        row_scales: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """Launches the product in the current stream."""
        lt, result, workspace = self.lt, out.data_ptr(), None
        if self.workspace_bytes:
            workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device=x.device)
        status = lt.multiply(
            lt.handle.address,
            self.plan.address,
            ONE if row_scales is None else row_scales.data_ptr(),
            compressed.data_ptr(),
            x.data_ptr(),
            NOTHING,
            result,
            result,
            None if workspace is None else workspace.data_ptr(),
            lt.stream_address(torch._C._cuda_getCurrentRawStream(x.get_device())),
            1,
        )
        if status:
            raise RuntimeError(f"cusparseLtMatmul failed with status {status}")


PLANS: dict[Problem, Plan] = {}


@cache
def library_of(device: int) -> CuSparseLt | None:
    """The library that PyTorch has loaded; None where it has none, or one of another version."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    # Before anything else: the sizes of the structures depend on it.
    if version_of(library) not in KNOWN_VERSIONS:
        return None
    with torch.cuda.device(device):
        return CuSparseLt(library)


def version_of(library: ctypes.CDLL) -> tuple[int, int]:
    parts = []
    for property_type in (MAJOR_VERSION, MINOR_VERSION):
        value = ctypes.c_int()
        if library.cusparseLtGetProperty(property_type, ctypes.byref(value)):
            return (-1, -1)
        parts.append(value.value)
    return parts[0], parts[1]


def plan_of(lt: CuSparseLt, problem: Problem) -> Plan:
    """Made at the first call, outside of graphs or inside: it launches nothing."""
    plan = PLANS.get(problem)
    if plan is None:
        if len(PLANS) >= MOST_PLANS:
            for old in PLANS.values():
                lt.call("MatmulPlanDestroy", old.plan)
            PLANS.clear()
        plan = PLANS[problem] = _new_plan(lt, problem)
    return plan


def _new_plan(lt: CuSparseLt, problem: Problem) -> Plan:
    """With the library's first algorithm where it does not have the asked one for this number of
    tokens: it was measured for another one, and an engine must not end for that."""
    try:
        return Plan(lt, problem)
    except RuntimeError:
        return Plan(lt, problem._replace(algorithm=0, split=1, mode=LIBRARY_CHOOSES))


def planned_product(
    lt: CuSparseLt,
    problem: Problem,
    compressed: torch.Tensor,
    x: torch.Tensor,
    row_scales: torch.Tensor | None,
) -> torch.Tensor:
    """[tokens, rows]; x has whole sixteens of tokens."""
    out = torch.empty((problem.tokens, problem.rows), dtype=problem.out_dtype, device=x.device)
    plan_of(lt, problem).run(compressed, x, row_scales, out)
    return out
