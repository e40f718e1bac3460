"""`python -m evaluate.compare results=[A,B]`: faster, slower, or no significant difference.

Compares two results files cell by cell, or two checkpoints within the given results. The verdict
uses a confidence interval of the ratio of latencies, never bare means. For two files, it also
prints how their environments differ. With thresholds it is a gate: the exit code says whether the
second is at least as good.
"""

import math
from collections import Counter
from pathlib import Path

from rich.table import Table

from conf.app import run
from conf.compose import Command
from conf.errors import bad_input, unknown
from conf.schema.kernels import KERNELS_OPTION
from conf.schema.report import CompareConfig
from conf.terminal import listed, say, table_console
from evaluate.gate import NO_RATIO, Finding, Verdict, failure, quality_finding, speed_finding
from evaluate.pairs import (
    Metric,
    Pair,
    check_distinct,
    has_common_runs,
    two_checkpoints,
    two_files,
)
from evaluate.report.decide.quality import Qualities, qualities
from evaluate.results.cells import Cell, by_workload, cells, kernel_names, kernels_of
from evaluate.results.host_time import OTHERS, busy_share, taken_share
from evaluate.results.merging import merged_rows
from evaluate.results.restart_noise import (
    Noise,
    machine_of,
    noise_of,
    ran_on_two_machines,
)
from evaluate.results.rows import Row, SpeedRow, TrialRow
from evaluate.results.significance import STATED_MACHINE, Ratio

NARROWEST_TABLE = 120
VLLM_ENGINES = ("vllm", "vllm_server")
COMPARED = (
    *("device", "driver", "power_limit_w", "cpu", "cores", "engine"),
    *("versions", "engine_options", "variables"),
)
COMMAND = Command(
    "compare",
    CompareConfig,
    (
        "python -m evaluate.compare results=[before.jsonl,after.jsonl]",
        "python -m evaluate.compare results=[a.jsonl] checkpoints=[original,w8a8_smooth_gptq]",
        "python -m evaluate.compare results=[old.jsonl,new.jsonl] min_ratio=0.98 min_recovery=0.99",
    ),
    module="evaluate.compare",
)


def main(config: CompareConfig) -> None:
    files = [Path(entry).expanduser() for entry in config.results]
    check_distinct(files, config.checkpoints)
    faults: list[str] = []
    if config.checkpoints is not None:
        row_lists = [_rows(files, faults)]
        cell_lists = [cells(row_lists[0])]
        pairs, unmatched = two_checkpoints(cell_lists[0], *config.checkpoints)
        titles = list(config.checkpoints)
    else:
        row_lists = [_rows([path], faults) for path in files]
        cell_lists = [cells(rows) for rows in row_lists]
        pairs, unmatched = two_files(cell_lists[0], cell_lists[1])
        titles = _distinct_names(files)
    if unmatched and (pairs or config.checkpoints is None):
        names = [f"{one.label} in {one.measure}" for one in unmatched]
        say(f"in the first only, or under another workload in the second: {listed(names)}")
    if not pairs:
        labels = dict.fromkeys(cell.label for cell_list in cell_lists for cell in cell_list)
        for name in config.checkpoints or []:
            if name not in labels:
                raise unknown(f"checkpoints={name}", name, labels)
        labels_text = ", ".join(labels) or "none"
        raise bad_input(
            f"{' and '.join(titles)} have no workload in common; there are: {labels_text}"
        )
    metric = Metric(config.value or "")
    metric.check({name for pair in pairs for cell in pair for name in cell.names})
    label_column = [] if config.checkpoints else ["checkpoint"]
    table = Table("scenario", *label_column, *titles, "times as fast", "95 % interval", "verdict")
    noise = noise_of([by_workload(cell_list) for cell_list in cell_lists], metric.name)
    noise.pairs = Counter(one.workload_name for one, _ in pairs)
    for pair in pairs:
        table.add_row(*_line(pair, metric, config, noise))
    screen = table_console(NARROWEST_TABLE)
    screen.print(table)
    for sentence in _kernels_ran(pairs, titles):
        say(sentence)
    for difference in [] if config.checkpoints else _differences(pairs):
        say(f"{titles[0]} and {titles[1]} differ in {difference}")
    say(str(noise))
    for sentence in _other_processes(pairs, titles):
        say(sentence)
    if any(ran_on_two_machines(*pair) for pair in pairs) and not noise.machines.members:
        say(f"they ran on two machines: intervals allow for {STATED_MACHINE:.1%} between them")
    if faults:
        raise bad_input(f"{len(faults)} lines were left out, the first: {faults[0]}")
    if config.checkpoints is None:
        unmatched = _tried(unmatched, row_lists[-1])
    findings = [
        *_speed_findings(config, pairs, unmatched, metric, noise),
        *_quality_findings(config, pairs, qualities(row_lists[-1])),
    ]
    error = failure(findings)
    if error is not None:
        raise error
    if findings:
        say(f"{Verdict.GOOD}: all {len(findings)} comparisons meet their thresholds")


def _speed_findings(
    config: CompareConfig,
    pairs: list[Pair],
    unmatched: list[Cell],
    metric: Metric,
    noise: Noise,
) -> list[Finding]:
    if config.min_ratio is None:
        return []
    findings = []
    for pair in pairs:
        what = f"{pair[1].label} in {pair[1].measure}"
        ratio, doubt = metric.ratio(pair, noise), _doubt(pair, config)
        findings.append(speed_finding(what, ratio, doubt, config.min_ratio))
    return findings + [
        Finding(f"{cell.label} in {cell.measure}", Verdict.UNKNOWN, "only the first has it")
        for cell in unmatched
    ]


def _quality_findings(config: CompareConfig, pairs: list[Pair], judged: Qualities) -> list[Finding]:
    if config.min_recovery is None:
        return []
    rows = {other.label: other.row for _, other in pairs}
    return [
        quality_finding(label, judged.of_row(row), config.min_recovery)
        for label, row in rows.items()
    ]


def _tried(unmatched: list[Cell], rows: list[Row]) -> list[Cell]:
    """The unmatched cells of checkpoints that the second file has rows of: it lacks a workload, or
    the checkpoint failed there."""
    checkpoints = {row.checkpoint for row in rows}
    return [cell for cell in unmatched if cell.checkpoint in checkpoints]


def _rows(files: list[Path], faults: list[str]) -> list[Row]:
    """The rows of the files. Lines that cannot be read are added to the faults."""
    rows, read_faults, notes = merged_rows(files)
    faults += read_faults
    for line in (*read_faults, *notes):
        say(line)
    if not any(isinstance(row, SpeedRow) for row in rows):
        names = ", ".join(map(str, files))
        searches = any(isinstance(row, TrialRow) for row in rows)
        instead = "; evaluate.report compares capacity searches" if searches else ""
        raise bad_input(f"results={names}: there are no timed runs in it{instead}")
    return rows


def _distinct_names(files: list[Path]) -> list[str]:
    """Two paths without their common beginning and end."""
    path_parts = [list(path.parts) for path in files]
    for end in (0, -1):
        while (
            len(path_parts[0]) > 1 < len(path_parts[1]) and path_parts[0][end] == path_parts[1][end]
        ):
            for names in path_parts:
                names.pop(end)
    return [str(Path(*names)) for names in path_parts]


def _differences(pairs: list[Pair]) -> list[str]:
    """The facts in which the runs of pairs differ, except checkpoint and workload."""
    differences: dict[str, None] = {}
    for one, other in pairs:
        facts = [_facts(cell.row) for cell in (one, other)]
        for name in dict.fromkeys([*facts[0], *facts[1]]):
            values = [fact.get(name, "none") for fact in facts]
            if values[0] != values[1]:
                differences[f"{name}: {values[0]} and {values[1]}"] = None
    return list(differences)


def _other_processes(pairs: list[Pair], titles: list[str]) -> list[str]:
    """Says that other processes may have slowed runs on a CPU: then a difference may be theirs."""
    sides = [[row for cell in side for row in cell.valid] for side in zip(*pairs, strict=True)]
    if not any(busy_share(runs) for runs in sides):
        return []
    shares = [taken_share(runs, OTHERS) for runs in sides]
    both = " and ".join(
        f"{'an unknown share' if share is None else f'{share:.0%}'} under {title}"
        for share, title in zip(shares, titles, strict=True)
    )
    return [
        f"of the cores' time, other processes took {both}: a difference may be theirs; measure "
        "both again on a quiet machine"
    ]


def _kernels_ran(pairs: list[Pair], titles: list[str]) -> list[str]:
    """What each side ran, checkpoint by checkpoint, where rows say it."""
    sentences = []
    for pair in pairs:
        ran = [(title, _kernels(cell.row)) for title, cell in zip(titles, pair, strict=True)]
        sides = [f"{title} on {kernels}" for title, kernels in ran if kernels]
        if sides:
            label = "" if pair[0].label in titles else f"{pair[0].label}: "
            sentences.append(f"{label}{'; '.join(sides)}")
    return list(dict.fromkeys(sentences))


def _kernels(row: Row) -> str:
    """The kernels' names; where ours were offered, also the products of the layers, those of the
    fewest tokens first."""
    up_to = {
        part.product: part.up_to or math.inf
        for kernels in row.layer_kernels
        for part in reversed(kernels.ranges)
    }
    products = ", ".join(sorted(up_to, key=lambda product: up_to[product]))
    return kernel_names(row) + (f" ({products})" if products else "")


def _facts(row: Row) -> dict[str, str]:
    """The facts that a run depends on, except the checkpoint and the workload."""
    facts = row.environment.facts(*COMPARED)
    if row.environment.engine in VLLM_ENGINES:
        facts[KERNELS_OPTION] = kernels_of(row)  # rows without the option ran on vLLM's own
    if row.environment.kernels_version is not None:
        facts["the version of our kernels"] = str(row.environment.kernels_version)
    if machine := machine_of(row):
        facts["machine"] = machine
    if row.environment.has_random_weights:
        facts["the format of made-up weights"] = str(row.environment.made_up or 0)
    return facts


def _line(pair: Pair, metric: Metric, config: CompareConfig, noise: Noise) -> list[str]:
    medians = [metric.median(cell) for cell in pair]
    return [
        pair[0].measure,
        *([] if config.checkpoints else [pair[0].label]),
        *("none" if median is None else f"{median:.4g}" for median in medians),
        *_verdict_columns(metric.ratio(pair, noise), _doubt(pair, config)),
    ]


def _doubt(pair: Pair, config: CompareConfig) -> str:
    """Why a ratio decides nothing; empty where it may."""
    if has_common_runs(pair):
        return "both have the same runs"
    is_ranked = all(cell.is_ranked(config.max_spread) for cell in pair)
    return "" if is_ranked else "too much spread"


def _verdict_columns(ratio: Ratio | None, doubt: str) -> list[str]:
    if ratio is None:
        return ["", "", f"unknown: {NO_RATIO}"]
    interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
    if doubt:
        return [f"{ratio.ratio:.3f}", interval, f"unknown: {doubt}"]
    verdict = "no significant difference"
    if ratio.differs:
        verdict = "faster" if ratio.ratio > 1 else "slower"
    return [f"{ratio.ratio:.3f}", interval, verdict]


if __name__ == "__main__":
    run(COMMAND, main)
