"""`quantline COMMAND ...`, every command under one name, and the Python API.

    from quantline import quantize, evaluate, recommend

In the repository this package lies beside conf/, quantize/, evaluate/, serve/ and recipes/. In a
wheel the five lie inside it. Their names are taken elsewhere (Hugging Face's `evaluate`, a `conf`
in the user's folder), so they are imported only when a command or a function of the API needs them.
"""

import importlib
import importlib.util
import logging
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantline.api import (
        Checkpoint,
        Evaluation,
        QuantlineError,
        Recommendation,
        evaluate,
        quantize,
        recommend,
    )

__all__ = [
    "Checkpoint",
    "Evaluation",
    "QuantlineError",
    "Recommendation",
    "evaluate",
    "quantize",
    "recommend",
]

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER if (FOLDER / "conf").is_dir() else FOLDER.parent  # of the five packages


def __getattr__(name: str) -> Any:
    """The names of the API, which are imported with their first use."""
    if name not in __all__:
        raise AttributeError(f"module 'quantline' has no attribute '{name}'")
    _check_names(("conf", "quantize", "evaluate", "serve"))
    if sys.path[0] != str(ROOT):
        sys.path.insert(0, str(ROOT))
    # In a wheel, `quantize` and `evaluate` are also folders of this package: the functions win.
    globals().update({n: getattr(importlib.import_module("quantline.api"), n) for n in __all__})
    return globals()[name]


def _check_names(names: tuple[str, ...]) -> None:
    """Raises ImportError if the process has imported another package of one of these names."""
    for name in names:
        if name not in sys.modules:
            continue
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or Path(file).resolve() != ROOT / name / "__init__.py":
            raise ImportError(
                f"another module called {name} was imported before quantline's own: {file}"
            )


def main() -> None:
    """Runs the command that the first argument names, as `python -m MODULE` does."""
    if sys.path[0] != str(ROOT):
        sys.path.insert(0, str(ROOT))
    from conf.entry import chosen_module

    if sys.argv[1:2] in (["--shell-completion"], ["-sc"]):
        from conf.shell.completion import answer_alone

        sys.exit(answer_alone(sys.argv[1:]))
    module = chosen_module(sys.argv[1:])
    del sys.argv[1]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        is_debugging = os.environ.get("QUANTLINE_DEBUG") == "1"
        if error.name is None or _is_ours(error.name) or is_debugging:
            raise
        print(_missing_text(error.name), file=sys.stderr)
        from conf.errors import ENVIRONMENT_FAILURE

        sys.exit(ENVIRONMENT_FAILURE)


def _missing_text(module: str) -> str:
    package = module.partition(".")[0]
    what = f"the package {package} is not installed"
    if package != module and importlib.util.find_spec(package) is not None:
        what = f"the installed {package} has no {module}: another version is needed"
    return f"error: {what}; the README's section 'Install it as a package' has the commands"


def _is_ours(module: str) -> bool:
    return (ROOT / module.partition(".")[0]).is_dir()


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
