"""Plans of cuSPARSELt, with a library that is made up."""

import ctypes
from typing import Any

import pytest
import torch

from serve.kernels.products.sparse import cusparselt
from serve.kernels.products.sparse.cusparselt import (
    ALGORITHM_NUMBER,
    CuSparseLt,
    Opaque,
    Problem,
    plan_of,
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

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "cusparseLtMatmulAlgSetAttribute" and arguments[2] == ALGORITHM_NUMBER:
                number = ctypes.cast(arguments[3], ctypes.POINTER(ctypes.c_int))[0]
                self.algorithms.append(number)
                return 3 if number else 0
            self.plans += name == "cusparseLtMatmulPlanInit"
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


def test_structures_are_aligned() -> None:
    assert all((Opaque().pointer.value or 0) % 16 == 0 for _ in range(8))
