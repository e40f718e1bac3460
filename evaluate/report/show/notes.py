"""What a report says in sentences: what to know first, what stands out, what is in no average."""

from conf.models import ORIGINAL
from conf.terminal import listed
from evaluate.accuracy.judging import engine_findings
from evaluate.report.decide.comparison import ComparisonGroup, Entry, Workload
from evaluate.report.decide.curves import BATCH, CONTEXT, crossing, curves
from evaluate.report.decide.kernels import kernel_findings
from evaluate.results.restart_noise import bandwidth_of, ran_on_two_machines
from evaluate.results.rows import AccuracyRow, FailedRow, Row, SkippedRow, SpeedRow
from evaluate.results.significance import STATED_MACHINE

MOST_LISTED = 200
MOST_FINDINGS = 12
NEARLY_FULL_CLOCK = 0.95


def notes(found: list[ComparisonGroup], results: list[str]) -> list[str]:
    """What a reader must know before trusting a figure."""
    said = []
    if len(found) > 1:
        said.append(
            f"{len(found)} setups (model, device, engine, versions) are in these results; nothing "
            "is ranked or averaged across them"
        )
    for group in found:
        said += _weights_notes(group)
        without = [
            workload.name for workload in group.workloads if _has_nothing_beside_it(workload)
        ]
        if without:
            names = ", ".join(without)
            said.append(f"{group.title}: no original to compare with, or one run only: {names}")
        said += [f"{group.title}: {group.noise}", *_machine_notes(group)]
        said += _second_start_notes(group, results)
    return said


def _second_start_notes(group: ComparisonGroup, results: list[str]) -> list[str]:
    """Ties with the original that another start would very likely decide, and how to get it."""
    undecided: dict[str, list[str]] = {}
    for workload in group.workloads:
        for entry in workload.entries:
            if entry.ratio is not None and entry.ratio.second_start_decides:
                undecided.setdefault(workload.measure, []).append(entry.checkpoint)
    if not undecided:
        return []
    scenarios = ",".join(undecided)
    checkpoints = list(dict.fromkeys(name for names in undecided.values() for name in names))
    what = f"model={group.model} engine={group.engine} 'scenario=[{scenarios}]'"
    if group.rows[0].environment.has_random_weights:
        what += f" weights=random 'recipes=[{','.join(checkpoints)}]'"
    ties = [f"{name} in {workload}" for workload, names in undecided.items() for name in names]
    return [
        f"{group.title}: a second start would very likely decide {listed(ties)}: "
        f"python -m evaluate {what} starts=2 results={results[-1]}"
    ]


def _weights_notes(group: ComparisonGroup) -> list[str]:
    made_up = [row for row in group.rows if row.environment.has_random_weights]
    if not made_up:
        return []
    if group.engine != "transformers" and any(row.environment.made_up is None for row in made_up):
        return [
            f"{group.title}: random weights that vLLM made up, mostly zeros where they are "
            "quantized. They take less power, which flatters long prompts and large batches; "
            "evaluate makes up others by now"
        ]
    return [
        f"{group.title}: random weights, spread as trained ones are, and as fast; accuracy comes "
        "from checkpoints of the same recipe where it is shown"
    ]


def _has_nothing_beside_it(workload: Workload) -> bool:
    """Whether candidates were measured that nothing can be said of."""
    candidates = [entry for entry in workload.entries if entry.checkpoint != ORIGINAL]
    return bool(candidates) and all(entry.ratio is None for entry in candidates)


def _machine_notes(group: ComparisonGroup) -> list[str]:
    """Who ran on another machine than the original that it is compared with."""
    apart: dict[str, None] = {}
    for workload in group.workloads:
        for entry in workload.entries:
            beside = workload.of(entry.baseline)
            if beside is not None and ran_on_two_machines(entry.cell, beside.cell):
                apart[entry.candidate] = None
    if not apart:
        return []
    rates = sorted({round(rate) for row in group.rows if (rate := bandwidth_of(row))})
    read = f" (they read {listed([f'{rate:,}' for rate in rates])} GB/s)" if rates else ""
    unknown = ""
    if not group.noise.machines.members:
        unknown = f"; intervals allow for {STATED_MACHINE:.1%} between machines"
    return [
        f"{group.title}: on another machine than the original{read}, in some loads or all: "
        f"{', '.join(apart)}{unknown}"
    ]


def findings(found: list[ComparisonGroup], rows: list[Row]) -> list[str]:
    """What stands out."""
    said = {group.title: _said_of(group) for group in found}
    told = [title for title, sentences in said.items() if sentences]
    words = engine_findings(rows)
    for title in told:
        words += [f"{title}: {one}" if len(told) > 1 else one for one in said[title]]
    return _first(words, MOST_FINDINGS, " of the kind")


def _said_of(group: ComparisonGroup) -> list[str]:
    crossings = [crossing(curve) for axis in (BATCH, CONTEXT) for curve in curves(group, axis)]
    said = [*kernel_findings(group), *crossings, _slowest_clock(group)]
    return [sentence for sentence in said if sentence]


def _slowest_clock(group: ComparisonGroup) -> str:
    """Where power was short: what is missing there from the hardware's limit is no kernel's. Rows
    of before runs recorded why the clock was lowered say no reason."""
    clocks = [
        (entry.clock_share, entry.candidate, workload.name, entry.median("power_capped_share"))
        for workload in group.workloads
        for entry in workload.entries
        if entry.clock_share is not None
    ]
    lowered = [clock for clock in clocks if clock[0] <= NEARLY_FULL_CLOCK and clock[3] != 0]
    if not lowered:
        return ""
    share, candidate, workload, capped = min(lowered, key=lambda clock: clock[0])
    words = "the clock is lowered" if capped is None else "the power limit lowers the clock"
    return f"{words}, most under {candidate} in {workload}: to {share:.0%}"


def _outliers(entry: Entry) -> list[str]:
    summary = entry.cell.summary(entry.cell.ranked_by)
    if summary is None:
        return []
    values = entry.cell.values(entry.cell.ranked_by)
    return [
        f"{entry.candidate}, {entry.workload.name}: outlier left out, {values[place]:.4g} s "
        f"against a median of {summary.median:.4g} s"
        for place in summary.outliers
    ]


def left_out(rows: list[Row], found: list[ComparisonGroup]) -> list[str]:
    """Invalid runs, outliers, failures and what was skipped; nothing vanishes without a word."""
    said = []
    for row in rows:
        where = f"{row.model}, {row.checkpoint}" + (f", {row.measure}" if row.measure else "")
        if isinstance(row, SpeedRow | AccuracyRow) and row.invalid:
            said.append(f"{where}, run {row.repeat + 1}: invalid, {'; '.join(row.invalid)}")
        elif isinstance(row, FailedRow | SkippedRow):
            said.append(f"{where}: {row.kind}, {row.reason}")
    for group in found:
        for workload in group.workloads:
            for entry in workload.entries:
                said += [f"{group.model}, {words}" for words in _outliers(entry)]
    return _first(said, MOST_LISTED)


def _first(said: list[str], most: int, of_what: str = "") -> list[str]:
    """Each once, and how many more there are."""
    said = list(dict.fromkeys(said))
    more = len(said) - most
    return said[:most] + ([f"and {more} more{of_what}"] if more > 0 else [])
