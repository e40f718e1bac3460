"""`python -m evaluate.report.answer`: tells a server what to serve."""

from collections import defaultdict
from pathlib import Path

from conf.errors import bad_input
from conf.process.inside import Send, run_program
from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.decide.commands import served_options
from evaluate.report.decide.comparison import ComparisonGroup, Entry
from evaluate.report.decide.decision import Answer
from evaluate.report.programs import RECOMMEND, Recommended, ServeRequest
from evaluate.results.rows import Row

VLLM = ("vllm", "vllm_server")


def recommend(request: ServeRequest) -> Recommended:
    """The recommended checkpoint of a model on a device, with the options of its measurement."""
    report = make_report(
        ReportConfig(results=[request.results], targets=request.targets, mix=request.mix)
    )
    if report.faults:
        raise bad_input(
            f"{len(report.faults)} lines cannot be read, the first: {report.faults[0]}; "
            "correct or remove them, or name what to serve with checkpoint= or recipe="
        )
    fitting = [answer for answer in report.answers if _fits(answer.group, request)]
    if not fitting:
        measured = "; ".join(group.title for group in report.groups) or "no speed"
        raise bad_input(
            f"results={request.results}: has no measurement of {request.model} in vLLM on this "
            f"machine ({request.device}); it has: {measured}"
        )
    chosen = fitting[0]
    if chosen.overall.candidate is None:
        raise bad_input(f"results={request.results}: {chosen.group.title}: {chosen.overall.why}")
    entries = _entries(chosen)
    row = entries[0].row if entries else _searched_row(chosen)
    name = Path(request.results).name
    options = served_options(row.environment.engine_options)
    what = "was fastest" if entries else "held the highest rate"
    reasons = dict.fromkeys(options, f"it {what} with it, in {name}")
    most_requests = _most_at_once(entries, request.targets.tpot_ms)
    if most_requests is not None:
        options["max_num_seqs"] = most_requests
        reasons["max_num_seqs"] = (
            f"the most at once that kept {request.targets.tpot_ms:g} ms a token, in {name}"
        )
    return Recommended(
        checkpoint=row.checkpoint,
        candidate=chosen.overall.candidate,
        why=chosen.overall.why,
        options=options,
        reasons=reasons,
    )


def _fits(group: ComparisonGroup, request: ServeRequest) -> bool:
    environment = group.rows[0].environment
    same_device = environment.device == request.device
    if same_device and environment.cpu is not None and request.device == "cpu":
        same_device = environment.cpu == request.cpu
    return group.model == request.model and group.engine in VLLM and same_device


def _entries(chosen: Answer) -> list[Entry]:
    candidate = chosen.overall.candidate or ""
    entries = [workload.of(candidate) for workload in chosen.group.workloads]
    return [entry for entry in entries if entry is not None]


def _searched_row(chosen: Answer) -> Row:
    """A row of the candidate in the capacity search that decided; there are no other runs."""
    cells = chosen.capacities[0].cells
    return next(cell.row for cell in cells if cell.candidate == chosen.overall.candidate)


def _most_at_once(entries: list[Entry], tpot_ms: float | None) -> int | None:
    """The largest batch that met the target, if a larger one missed it."""
    if tpot_ms is None:
        return None
    slowest: dict[int, float] = defaultdict(float)
    for entry in entries:
        tpot = entry.median("tpot_median_s")
        batch = entry.row.settings.batch
        if batch is not None and tpot is not None:
            slowest[batch] = max(slowest[batch], tpot * 1e3)
    good_batches = [batch for batch, tpot in slowest.items() if tpot <= tpot_ms]
    return max(good_batches) if good_batches and max(good_batches) < max(slowest) else None


def work(request: ServeRequest, send: Send[Recommended]) -> None:
    send(recommend(request))


if __name__ == "__main__":
    run_program(RECOMMEND, work, str(__doc__))
