"""`python -m evaluate.report.answer`: what to serve, for a server that asks for it."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from conf.errors import bad_input
from conf.process.inside import Send, fulfil
from conf.schema.load import KV_CACHE_SIZE, MEMORY_SHARE
from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.decide.comparison import ComparisonGroup, Entry
from evaluate.report.decide.decision import Answer
from evaluate.report.programs import RECOMMEND, Recommended, ServeRequest

VLLM = ("vllm", "vllm_server")
# Set for a measurement, or by the machine; a server chooses its own.
NOT_HANDED_ON = ("dtype", "enforce_eager", "max_model_len", "enable_prefix_caching")
# Sizes of engines that were measured side by side; a server has the GPU for itself.
SIDE_BY_SIDE = (KV_CACHE_SIZE, MEMORY_SHARE)


def recommend(request: ServeRequest) -> Recommended:
    """What to serve of a model on a device, with the options that it was measured with."""
    found = make_report(
        ReportConfig(results=[request.results], targets=request.targets, mix=request.mix)
    )
    if found.faults:
        raise bad_input(
            f"{len(found.faults)} lines cannot be read, the first: {found.faults[0]}; "
            "mend or remove them, or name what to serve with checkpoint= or recipe="
        )
    fitting = [one for one in found.answers if _fits(one.group, request)]
    if not fitting:
        known = "; ".join(group.title for group in found.groups) or "no speed"
        raise bad_input(
            f"results={request.results}: nothing of {request.model} in vLLM on this "
            f"machine ({request.device}); measured are: {known}"
        )
    chosen = fitting[0]
    if chosen.whole.candidate is None:
        raise bad_input(f"results={request.results}: {chosen.group.title}: {chosen.whole.why}")
    entries = _entries(chosen)
    name = Path(request.results).name
    options = _served_options(entries[0].row.environment.engine_options)
    reasons = dict.fromkeys(options, f"it was fastest with it, in {name}")
    most = _most_at_once(entries, request.targets.tpot_ms)
    if most is not None:
        options["max_num_seqs"] = most
        reasons["max_num_seqs"] = (
            f"the most at once that kept {request.targets.tpot_ms:g} ms a token, in {name}"
        )
    return Recommended(
        checkpoint=entries[0].checkpoint,
        candidate=chosen.whole.candidate,
        why=chosen.whole.why,
        options=options,
        reasons=reasons,
    )


def _served_options(measured: dict[str, Any]) -> dict[str, Any]:
    """The engine options of a measurement that a server takes over."""
    left_out = {*NOT_HANDED_ON, *(SIDE_BY_SIDE if KV_CACHE_SIZE in measured else ())}
    return {name: value for name, value in measured.items() if name not in left_out}


def _fits(group: ComparisonGroup, request: ServeRequest) -> bool:
    environment = group.rows[0].environment
    same_device = environment.device == request.device
    if same_device and environment.cpu is not None and request.device == "cpu":
        same_device = environment.cpu == request.cpu
    return group.model == request.model and group.engine in VLLM and same_device


def _entries(chosen: Answer) -> list[Entry]:
    candidate = chosen.whole.candidate or ""
    found = [workload.of(candidate) for workload in chosen.group.workloads]
    return [entry for entry in found if entry is not None]


def _most_at_once(entries: list[Entry], tpot_ms: float | None) -> int | None:
    """The largest batch that kept the target, where a larger one did not."""
    if tpot_ms is None:
        return None
    slowest: dict[int, float] = defaultdict(float)
    for entry in entries:
        time = entry.median("tpot_median_s")
        batch = entry.row.settings.batch
        if batch is not None and time is not None:
            slowest[batch] = max(slowest[batch], time * 1e3)
    kept = [batch for batch, time in slowest.items() if time <= tpot_ms]
    return max(kept) if kept and max(kept) < max(slowest) else None


def work(request: ServeRequest, send: Send[Recommended]) -> None:
    send(recommend(request))


if __name__ == "__main__":
    fulfil(RECOMMEND, work, str(__doc__))
