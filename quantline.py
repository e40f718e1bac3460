"""`quantline COMMAND ...`: every command under one name.

In the repository this file lies beside conf/, quantize/, evaluate/, serve/ and recipes/. In a wheel
it is `quantline/__init__.py`, and the five lie in the same folder. Their names are taken elsewhere
(Hugging Face's `evaluate`, a `conf` in the user's folder), so that they can be imported only in the
processes of a command.
"""

import importlib
import importlib.util
import logging
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def main() -> None:
    """Runs the command that the first argument names, as `python -m MODULE` does."""
    if sys.path[0] != str(ROOT):
        sys.path.insert(0, str(ROOT))
    from conf.entry import chosen_module

    module = chosen_module(sys.argv[1:])
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def register_kernels() -> None:
    """Registers our kernels in vLLM: the entry point `vllm.general_plugins`, which vLLM calls in
    each of its processes. Where a user's own `conf` or `serve` could be imported there, it does
    nothing: the names would be taken from the user. Never raises."""
    path = list(sys.path)
    try:
        for name in ("conf", "quantize", "serve"):
            spec = importlib.util.find_spec(name)
            file = Path(spec.origin).resolve() if spec and spec.origin else None
            if file not in (None, ROOT / name / "__init__.py"):
                raise ImportError(f"another module is called {name}: {file}")
        sys.path.insert(0, str(ROOT))
        importlib.import_module("conf")
        importlib.import_module("quantize")  # VPTQ in plain torch
        importlib.import_module("serve.kernels.plugin").register()
    except Exception as error:
        logging.getLogger("vllm.quantline").warning(
            "quantline: vLLM's own kernels are used: %s", error
        )
    finally:
        sys.path[:] = path  # what is imported finds the rest of its package


if __name__ == "__main__":
    main()
