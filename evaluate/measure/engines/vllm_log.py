"""Reads vLLM's log: kernels, memory, startup seconds, and late compilation."""

import re
from collections import defaultdict
from pathlib import Path

from conf.errors import environment_failure
from evaluate.measure.engines import Loaded, LoadRequest
from evaluate.results.row_types import Memory, Startup
from serve.kernels.record import read_log

RANDOM_WEIGHTS_LINE = "weights are made up, spread as a trained model's"
KERNELS = (
    re.compile(r"Selected (?P<kernel>\w+) for (?P<scheme>\w+)"),
    re.compile(r"Using (?P<kernel>\w+Kernel) for (?P<scheme>\w+)"),
    re.compile(r"Using '?(?P<kernel>\w+)'? (?P<scheme>[\w ]+ MoE) backend"),
)
FIGURES = {
    "weights_gib": r"Model loading took ([\d.]+) GiB",
    "kv_cache_tokens": r"KV cache size: ([\d,]+) tokens",
    "graphs_gib": r"Graph capturing finished in \d+ secs, took ([\d.]+) GiB",
}
SECONDS = {
    "load_s": r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds",
    "weights_s": r"Loading weights took ([\d.]+) seconds",
    "compile_s": r"torch\.compile took ([\d.]+) s in total",
    "capture_s": r"Graph capturing finished in (\d+) secs",
    "prepare_s": r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s",
}
COMPILING = re.compile(
    r"(?P<what>\w+ (?:kernel |autotun|JIT|cute)[^\n]{0,40} during inference: [^\n.]*"
    r"|Compiling a graph for[^\n]*|Triton autotuning for[^\n]*|Autotuning kernel [^\n]*)"
)


def loaded(load: LoadRequest) -> Loaded:
    """The engine's kernels, memory and startup seconds, from its log."""
    text = load.log.read_text(errors="replace")
    if load.dummy and RANDOM_WEIGHTS_LINE not in text:
        raise environment_failure(
            "this vLLM used its own dummy weights, mostly zeros, which run faster"
        )
    return Loaded(
        Startup(**_figures(SECONDS, text)),
        Memory(**_figures(FIGURES, text)),
        _kernels(text),
        read_log(text),
    )


def _kernels(text: str) -> dict[str, str]:
    """The kernels of each scheme: vLLM logs another one for layers that the first cannot run.
    Sorted, as an engine's processes log them in any order."""
    names = defaultdict[str, set[str]](set)
    for pattern in KERNELS:
        for match in pattern.finditer(text):
            names[match["scheme"]].add(match["kernel"])
    return {scheme: ", ".join(sorted(kernels)) for scheme, kernels in names.items()}


def _figures(patterns: dict[str, str], text: str) -> dict[str, float]:
    figures = {}
    for name, pattern in patterns.items():
        matches = re.findall(pattern, text)
        if matches:
            figures[name] = float(matches[-1].replace(",", ""))
    return figures


class LateCompiling:
    """Reads from the log which kernels were compiled since the last call."""

    def __init__(self, log: Path) -> None:
        self.log, self.place = log, log.stat().st_size

    def since_last_look(self) -> list[str]:
        with self.log.open("rb") as file:
            file.seek(self.place)
            text = file.read().decode(errors="replace")
            self.place = file.tell()
        return [match["what"].strip() for match in COMPILING.finditer(text)]
