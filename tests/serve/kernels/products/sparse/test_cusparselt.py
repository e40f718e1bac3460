"""Plans of cuSPARSELt, with a library that is made up."""

import ctypes
from typing import Any

import pytest
import torch

from serve.kernels.products.sparse import cusparselt
from serve.kernels.products.sparse.cusparselt import (
    ALGORITHM_NUMBER,
    NOTHING,
    ONE,
    CuSparseLt,
    Opaque,
    Problem,
    plan_of,
    planned_product,
)

PROBLEM = Problem(
    device=0,
    rows=64,
    columns=128,
    tokens=16,
    dtype=torch.int8,
    out_dtype=torch.bfloat16,
    algorithm=7,
    split=1,
    mode=-1,
    has_row_scales=True,
)


class Library:
    """Has algorithm 0 only; every other call succeeds."""

    def __init__(self) -> None:
        self.algorithms: list[int] = []
        self.plans = 0
        self.products: list[tuple[Any, ...]] = []
        self.status = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "cusparseLtMatmulAlgSetAttribute" and arguments[2] == ALGORITHM_NUMBER:
                number = ctypes.cast(arguments[3], ctypes.POINTER(ctypes.c_int))[0]
                self.algorithms.append(number)
                return 3 if number else 0
            self.plans += name == "cusparseLtMatmulPlanInit"
            if name == "cusparseLtMatmul":
                self.products.append(arguments)
                return self.status
            return 0

        return call


def test_an_algorithm_that_is_not_there_does_not_end_an_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cusparselt, "PLANS", {})
    library: Any = Library()
    lt = CuSparseLt(library)
    plan = plan_of(lt, PROBLEM)
    assert library.algorithms == [7, 0]
    assert plan_of(lt, PROBLEM) is plan
    assert library.plans == 1, "the plan is kept for the algorithm that was asked for"


def test_a_call_passes_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cusparselt, "PLANS", {})
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 5, raising=False)
    library: Any = Library()
    lt = CuSparseLt(library)
    compressed, x = torch.zeros(64, 80, dtype=torch.int8), torch.zeros(16, 128, dtype=torch.int8)
    for scales in (torch.ones(64), None, None):
        out = planned_product(lt, PROBLEM, compressed, x, scales)
        assert (out.shape, out.dtype) == ((16, 64), torch.bfloat16)
        given = library.products[-1]
        assert given[3:5] == (compressed.data_ptr(), x.data_ptr())
        assert given[6:9] == (out.data_ptr(), out.data_ptr(), None), "it needs no workspace"
        factor = scales.data_ptr() if scales is not None else ONE
        assert (given[2], given[5], given[10]) == (factor, NOTHING, 1)
        assert ctypes.c_void_p.from_address(given[9]).value == 5, "the current stream"
    assert [ctypes.c_float.from_address(one).value for one in (ONE, NOTHING)] == [1.0, 0.0]
    assert library.plans == 1
    assert library.products[1][:3] == library.products[2][:3]
    library.status = 7
    with pytest.raises(RuntimeError, match="status 7"):
        planned_product(lt, PROBLEM, compressed, x, None)


def test_structures_are_aligned() -> None:
    assert all((Opaque().pointer.value or 0) % 16 == 0 for _ in range(8))
