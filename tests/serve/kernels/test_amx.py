"""AMX is asked for before vLLM uses it."""

import ctypes
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from conf.hardware import cpu_has_amx
from serve.kernels.amx import request_amx
from tests.conftest import ROOT

MODULE = ModuleType("cpu_worker")
ARCH_PRCTL, GET_PERMISSION, TILE_DATA = 158, 0x1022, 1 << 18
"""Of Linux on x86-64."""


@pytest.mark.parametrize("is_granted", [True, False])
def test_it_is_requested_where_the_cpu_has_it(
    is_granted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    requests: list[bool] = []

    def request() -> bool:
        requests.append(is_granted)
        return is_granted

    monkeypatch.setattr(torch.cpu, "_init_amx", request)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    request_amx(MODULE)
    assert requests == []
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    request_amx(MODULE)
    assert requests == [is_granted]
    assert ("Linux refuses AMX" in caplog.text) is not is_granted


def test_a_torch_without_it_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    request_amx(MODULE)
    assert "AMX was not requested" in caplog.text


@pytest.mark.skipif(not cpu_has_amx(), reason="needs a CPU with AMX")
def test_linux_grants_it() -> None:
    """In a process of its own: a grant lasts as long as the process."""
    code = (
        "from tests.serve.kernels.test_amx import *\n"
        "before = permitted()\n"
        "request_amx(MODULE)\n"
        "print(before, permitted())\n"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.stdout == "False True\n", result.stderr


def permitted() -> bool:
    features = ctypes.c_uint64()
    assert ctypes.CDLL(None).syscall(ARCH_PRCTL, GET_PERMISSION, ctypes.byref(features)) == 0
    return bool(features.value & TILE_DATA)
