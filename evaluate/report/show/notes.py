"""The sentences of a report: notes, findings, and the runs that are left out."""

from collections import defaultdict

from conf.models import ORIGINAL
from conf.schema.kernels import KERNELS_OPTION
from conf.schema.load import GpuConfig
from conf.terminal import listed
from evaluate.accuracy.judging import engine_findings
from evaluate.report.decide.commands import second_starts
from evaluate.report.decide.comparison import ComparisonGroup, Entry, Workload
from evaluate.report.decide.costs import has_energy
from evaluate.report.decide.curves import BATCH, CONTEXT, crossing, curves
from evaluate.report.decide.kernels import kernel_findings
from evaluate.report.decide.our_kernels import gain_findings, on_two_machines, runs_ours
from evaluate.report.decide.quality import Qualities
from evaluate.results.host_time import (
    MUCH_BY_OTHERS,
    OTHERS,
    STOLEN,
    processors_did_the_work,
    taken_share,
)
from evaluate.results.restart_noise import UNKNOWN, bandwidth_of, machine_of, ran_on_two_machines
from evaluate.results.rows import AccuracyRow, FailedRow, Row, SkippedRow, SpeedRow, TrialRow
from evaluate.results.significance import STATED_MACHINE, STATED_START

MOST_LISTED = 200
MOST_FINDINGS = 12
NEARLY_FULL_CLOCK = 0.95
# Of the hardware's limit, while an unquantized model decodes one request in vLLM. An 8B model
# reaches 0.67 to 0.72 on an H200, a 1.5B model that its host kept waiting 0.31 to 0.38.
GPU_WAITS = 0.4
# Of the CPU time that was asked for, over all runs of a start. In a start with 0.029, four of six
# workloads with one or two requests took 9 to 14 % longer than in one with 0.004; twelve starts had
# 0.001 to 0.008, and one 0.018, which was not slower.
MUCH_STOLEN = 0.02
LONG_WAIT = 0.1  # of the time; chosen: quiet runs on a GPU have 0.001 to 0.002


def notes(groups: list[ComparisonGroup], results: list[str]) -> list[str]:
    """Notes that a reader must know before trusting a figure."""
    sentences = []
    if len(groups) > 1:
        sentences.append(
            f"{len(groups)} setups (model, device, engine, versions) are in these results; nothing "
            "is ranked or averaged across them"
        )
    for group in groups:
        sentences += _weights_notes(group)
        uncompared = [workload.name for workload in group.workloads if _is_not_compared(workload)]
        if uncompared:
            names = ", ".join(uncompared)
            sentences.append(
                f"{group.title}: no original to compare with, or one run only: {names}"
            )
        if group.workloads:
            sentences.append(f"{group.title}: {group.noise}")
        sentences += [*_search_notes(group), *_searched_machines(group), *_machine_notes(group)]
        sentences += _kernels_notes(group)
        sentences += _second_start_notes(group, results)
    return sentences


def energy_notes(groups: list[ComparisonGroup], gpu: GpuConfig) -> list[str]:
    """That energy has a price and is not counted, as on a CPU."""
    if not gpu.energy_price_per_kwh:
        return []
    return [
        f"{group.title}: no energy was measured, so gpu.energy_price_per_kwh is not counted"
        for group in groups
        if not has_energy(group.rows)
    ]


def _search_notes(group: ComparisonGroup) -> list[str]:
    """What the intervals of capacities hold of the noise between starts."""
    starts: dict[str, set[int]] = defaultdict(set)
    for row in group.rows:
        if isinstance(row, TrialRow) and not row.invalid:
            starts[row.key].add(row.start)
    if all(len(own) > 1 for own in starts.values()):
        return []
    return [
        f"{group.title}: servers that were searched in one start only: the intervals of their "
        f"capacities allow for start noise of {STATED_START:.0%} (standard deviation)"
    ]


def _searched_machines(group: ComparisonGroup) -> list[str]:
    """That capacities come from several machines."""
    rows = [row for row in group.rows if isinstance(row, TrialRow) and not row.invalid]
    machines = {machine_of(row) for row in rows} - {UNKNOWN}
    if len(machines) < 2:
        return []
    return [
        f"{group.title}: capacities were searched on {len(machines)} machines of one name; where a "
        "checkpoint and the original ran on two, the interval includes the noise between machines"
    ]


def _second_start_notes(group: ComparisonGroup, results: list[str]) -> list[str]:
    """Ties with the original that another start would very likely decide, with the command."""
    return [
        f"{group.title}: a second start would very likely decide {listed(ties)}: {command}"
        for ties, command in second_starts(group, results[-1])
    ]


def _weights_notes(group: ComparisonGroup) -> list[str]:
    made_up = [row for row in group.rows if row.environment.has_random_weights]
    if not made_up:
        return []
    if group.engine != "transformers" and any(row.environment.made_up is None for row in made_up):
        return [
            f"{group.title}: vLLM's own dummy weights, mostly zeros where they are quantized. They "
            "take less power, which overstates the speed of long prompts and large batches; newer "
            "versions of evaluate use other random weights"
        ]
    experts = (
        ". A trained router spreads tokens less evenly over experts" if _has_experts(group) else ""
    )
    return [
        f"{group.title}: random weights, spread as trained ones are, and as fast; accuracy comes "
        f"from checkpoints of the same recipe where it is shown{experts}"
    ]


def _has_experts(group: ComparisonGroup) -> bool:
    """Whether the engine named a kernel of experts."""
    return any(name.endswith(" MoE") for row in group.rows for name in row.kernels)


def _is_not_compared(workload: Workload) -> bool:
    """Whether the workload has candidates, but none with a speed-up."""
    candidates = [entry for entry in workload.entries if entry.checkpoint != ORIGINAL]
    return bool(candidates) and all(entry.ratio is None for entry in candidates)


def _machine_notes(group: ComparisonGroup) -> list[str]:
    """The candidates that ran on another machine than the original that they are compared with."""
    on_other_machine: dict[str, None] = {}
    for workload in group.workloads:
        for entry in workload.entries:
            baseline = workload.of(entry.baseline)
            if baseline is not None and ran_on_two_machines(entry.cell, baseline.cell):
                on_other_machine[entry.candidate] = None
    if not on_other_machine:
        return []
    rates = sorted({round(rate) for row in group.rows if (rate := bandwidth_of(row))})
    rates_text = f" (they read {listed([f'{rate:,}' for rate in rates])} GB/s)" if rates else ""
    bounds_text = ""
    if not group.noise.machines.members:
        bounds_text = f"; intervals allow for {STATED_MACHINE:.1%} between machines"
    return [
        f"{group.title}: on another machine than the original{rates_text}, in some loads or all: "
        f"{', '.join(on_other_machine)}{bounds_text}"
    ]


def _kernels_notes(group: ComparisonGroup) -> list[str]:
    """Which names stand for our kernels, and what cannot be compared with vLLM's own."""
    entries = [entry for workload in group.workloads for entry in workload.entries]
    sentences = []
    offered = {runs_ours(entry) for entry in entries}
    if len(offered) > 1:
        sentences.append(
            f"{group.title}: checkpoints named with {KERNELS_OPTION}= ran on our kernels where "
            "these are faster; the others ran on vLLM's own"
        )
    elif offered == {True}:
        sentences.append(f"{group.title}: all ran on our kernels where these are faster")
    if apart := on_two_machines(group):
        sentences.append(
            f"{group.title}: on our kernels and on vLLM's own, but not on one machine, so the two "
            f"are not compared in some loads or all: {', '.join(apart)}"
        )
    return sentences


def judged_elsewhere(groups: list[ComparisonGroup], qualities: Qualities) -> list[str]:
    """The candidates whose accuracy was judged on other kernels than their speed was measured."""
    sentences = []
    for group in groups:
        entries = [entry for workload in group.workloads for entry in workload.entries]
        elsewhere = [
            entry.candidate
            for entry in entries
            if (quality := qualities.of(entry)) is not None and quality.other_kernels
        ]
        if elsewhere:
            sentences.append(
                f"{group.title}: accuracy was judged on other kernels than the speed: "
                f"{', '.join(dict.fromkeys(elsewhere))}. accuracy=quick with the same "
                "engine.kernels= judges it"
            )
    return sentences


def findings(groups: list[ComparisonGroup], rows: list[Row]) -> list[str]:
    """The findings of all groups, and engines that disagree."""
    by_group = {group.title: _group_findings(group) for group in groups}
    titles = [title for title, sentences in by_group.items() if sentences]
    lines = engine_findings(rows)
    for title in titles:
        lines += [
            f"{title}: {sentence}" if len(titles) > 1 else sentence for sentence in by_group[title]
        ]
    return _first_of(lines, MOST_FINDINGS, " of the kind")


def _group_findings(group: ComparisonGroup) -> list[str]:
    crossings = [crossing(curve) for axis in (BATCH, CONTEXT) for curve in curves(group, axis)]
    sentences = [
        _waiting_gpu(group),
        _stolen_time(group),
        _other_processes(group),
        _waiting_processes(group),
        *gain_findings(group),
        *kernel_findings(group),
        *crossings,
        _slowest_clock(group),
    ]
    return [sentence for sentence in sentences if sentence]


def _waiting_gpu(group: ComparisonGroup) -> str:
    """The loads of one request in which the original is so far from the hardware's limit while it
    decodes that something else sets the pace: smaller weights may gain little there."""
    if group.engine == "transformers":  # it always is
        return ""
    shares: dict[str, float] = {}  # the best original of each load
    for workload in group.workloads:
        for entry in workload.entries:
            share, environment = entry.cell.decode_share, entry.row.environment
            is_original = entry.checkpoint == ORIGINAL and entry.row.settings.batch == 1
            if is_original and share and environment.max_sm_clock_mhz:
                shares[workload.name] = max(share, shares.get(workload.name, 0.0))
    waiting = {name: share for name, share in shares.items() if share < GPU_WAITS}
    if not waiting:
        return ""
    least, most = f"{min(waiting.values()):.0%}", f"{max(waiting.values()):.0%}"
    range_text = least if least == most else f"{least} to {most}"
    cause = "the host or the kernels of the experts" if _has_experts(group) else "the host"
    return (
        f"the GPU waits in {listed(list(waiting))}: the original decodes at {range_text} of "
        f"the hardware's limit. Something else, most likely {cause}, sets the pace there, and "
        "smaller weights may gain little"
    )


def _slowest_clock(group: ComparisonGroup) -> str:
    """The entry whose clock was lowered most. There the power limit, not the kernel, explains a
    low share of the hardware's limit. Older rows do not record why the clock was lowered."""
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
    cause = "the clock is lowered" if capped is None else "the power limit lowers the clock"
    return f"{cause}, most under {candidate} in {workload}: to {share:.0%}"


def _stolen_time(group: ComparisonGroup) -> str:
    """The start that lost most to other machines of the same hypervisor."""
    share, start = _most_taken(group, STOLEN)
    if share < MUCH_STOLEN:
        return ""
    return (
        f"other machines on the same hardware took CPU time, most in {start}: {share:.1%} of what "
        "was asked for. Short steps may take longer then; measure again on a quieter machine"
    )


def _other_processes(group: ComparisonGroup) -> str:
    """The start that shared its cores most. With a GPU it matters only if processes waited."""
    share, start = _most_taken(group, OTHERS)
    if share < MUCH_BY_OTHERS or not processors_did_the_work(group.rows):
        return ""
    return (
        f"other processes took CPU time, most in {start}: {share:.0%} of the cores' time. It may "
        "have slowed the runs; measure again on a quiet machine with force=true"
    )


def _most_taken(group: ComparisonGroup, name: str) -> tuple[float, str]:
    """The largest share of the CPU time of a start, and the start; single runs are too short."""
    by_start: dict[tuple[str, int, str], list[SpeedRow]] = defaultdict(list)
    for entry in (entry for workload in group.workloads for entry in workload.entries):
        for row in entry.cell.valid:
            by_start[entry.candidate, row.start, machine_of(row)].append(row)
    shares = [
        (share, f"start {number + 1} of {candidate}")
        for (candidate, number, _), runs in by_start.items()
        if (share := taken_share(runs, name)) is not None
    ]
    return max(shares, key=lambda found: found[0], default=(0.0, ""))


def _waiting_processes(group: ComparisonGroup) -> str:
    """The entry whose processes waited most for a core. Without a GPU, the engine itself keeps all
    cores busy, and that says nothing."""
    share, where = _most(group, "cpu_waiting_share")
    if share < LONG_WAIT or processors_did_the_work(group.rows):
        return ""
    return (
        f"processes waited for a core, most under {where}: for {share:.0%} of the time at least "
        "one did. The GPU may have waited, too"
    )


def _most(group: ComparisonGroup, name: str) -> tuple[float, str]:
    """The largest median of that value, and where; 0 if it was not measured."""
    shares = [
        (share, f"{entry.candidate} in {workload.name}")
        for workload in group.workloads
        for entry in workload.entries
        if (share := entry.median(name)) is not None
    ]
    return max(shares, key=lambda found: found[0], default=(0.0, ""))


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


def left_out(rows: list[Row], groups: list[ComparisonGroup]) -> list[str]:
    """Sentences on all invalid, failed and skipped runs and on outliers."""
    sentences = []
    for row in rows:
        name = f"{row.model}, {row.checkpoint}" + (f", {row.measure}" if row.measure else "")
        if isinstance(row, SpeedRow | AccuracyRow) and row.invalid:
            sentences.append(f"{name}, run {row.repeat + 1}: invalid, {'; '.join(row.invalid)}")
        elif isinstance(row, FailedRow | SkippedRow):
            sentences.append(f"{name}: {row.kind}, {row.reason}")
    for group in groups:
        for workload in group.workloads:
            for entry in workload.entries:
                sentences += [f"{group.model}, {sentence}" for sentence in _outliers(entry)]
    return _first_of(sentences, MOST_LISTED)


def _first_of(sentences: list[str], count: int, suffix: str = "") -> list[str]:
    """The first sentences without duplicates, and how many more there are."""
    sentences = list(dict.fromkeys(sentences))
    omitted = len(sentences) - count
    return sentences[:count] + ([f"and {omitted} more{suffix}"] if omitted > 0 else [])
