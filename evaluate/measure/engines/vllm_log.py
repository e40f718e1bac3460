"""What vLLM says only in its log: kernels, memory, seconds, and late compiling."""

import re
from pathlib import Path

from conf.errors import world_fault
from evaluate.measure.engines import Loaded, LoadRequest
from evaluate.results.row_types import Memory, Startup

SAID_OF_WEIGHTS = "weights are made up, spread as a trained model's"
KERNELS = (
    re.compile(r"Selected (?P<kernel>\w+) for (?P<scheme>\w+)"),
    re.compile(r"Using (?P<kernel>\w+Kernel) for (?P<scheme>\w+)"),
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
    """What the engine chose and how long it took, from its own words."""
    text = load.log.read_text(errors="replace")
    if load.dummy and SAID_OF_WEIGHTS not in text:
        raise world_fault(
            "this vLLM makes up weights in its own way, mostly zeros, which run faster"
        )
    kernels = {match["scheme"]: match["kernel"] for one in KERNELS for match in one.finditer(text)}
    return Loaded(Startup(**_figures(SECONDS, text)), Memory(**_figures(FIGURES, text)), kernels)


def _figures(patterns: dict[str, str], text: str) -> dict[str, float]:
    found = {}
    for name, pattern in patterns.items():
        matches = re.findall(pattern, text)
        if matches:
            found[name] = float(matches[-1].replace(",", ""))
    return found


class LateCompiling:
    """Kernels that were compiled since the last look, as the log tells."""

    def __init__(self, log: Path) -> None:
        self.log, self.place = log, log.stat().st_size

    def since_last_look(self) -> list[str]:
        with self.log.open("rb") as file:
            file.seek(self.place)
            text = file.read().decode(errors="replace")
            self.place = file.tell()
        return [match["what"].strip() for match in COMPILING.finditer(text)]
