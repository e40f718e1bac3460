"""NVRTC without a GPU: shows that a kernel's source compiles."""

import ctypes
import importlib.util
from pathlib import Path


def library() -> ctypes.CDLL | None:
    """NVRTC where a package has installed it."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in Path(folder).rglob("libnvrtc.so.1[23]")]
    return ctypes.CDLL(str(files[0])) if files else None


def errors(nvrtc: ctypes.CDLL, source: str, architecture: str = "90") -> str:
    """What NVRTC says about a source that it cannot compile for Hopper; else nothing."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{architecture}".encode())
    code = nvrtc.nvrtcCompileProgram(program, 1, options)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.value.decode() or f"error {code}" if code else ""
