"""The speed of two sets of runs, workload by workload: the table, what else differs, the gate."""

import math
from collections import Counter

from rich.table import Table

from conf.schema.kernels import KERNELS_OPTION
from conf.schema.report import CompareConfig
from conf.terminal import say, table_console
from evaluate.compare.gate import NO_RATIO, Finding, speed_finding
from evaluate.compare.matching import NARROWEST_TABLE, Matching
from evaluate.compare.pairs import Metric, Pair, has_common_runs
from evaluate.results.cells import by_workload, kernel_names, kernels_of
from evaluate.results.host_time import OTHERS, busy_share, taken_share
from evaluate.results.restart_noise import (
    Noise,
    machine_of,
    noise_of,
    ran_on_two_machines,
)
from evaluate.results.rows import Row
from evaluate.results.significance import STATED_MACHINE, Ratio

VLLM_ENGINES = ("vllm", "vllm_server")
COMPARED = (
    *("device", "driver", "power_limit_w", "cpu", "cores", "engine"),
    *("versions", "engine_options", "variables"),
)


def compare_speed(config: CompareConfig, matching: Matching) -> list[Finding]:
    """Prints the table of all pairs and what else differs; the findings of the gate."""
    titles, cell_lists, pairs = matching.titles, matching.cell_lists, matching.pairs
    metric = Metric(config.value or "")
    metric.check({name for pair in pairs for cell in pair for name in cell.names})
    noise = noise_of([by_workload(cell_list) for cell_list in cell_lists], metric.name)
    noise.pairs = Counter(one.workload_name for one, _ in pairs)
    label_column = [] if config.checkpoints else ["checkpoint"]
    table = Table("scenario", *label_column, *titles, "times as fast", "95 % interval", "verdict")
    for pair in pairs:
        table.add_row(*_line(pair, metric, config, noise))
    table_console(NARROWEST_TABLE).print(table)
    differences = _differences(pairs)
    for sentence in (
        *_kernels_ran(pairs, titles),
        *(f"{titles[0]} and {titles[1]} differ in {difference}" for difference in differences),
        str(noise),
        *_other_processes(pairs, titles),
    ):
        say(sentence)
    if any(ran_on_two_machines(*pair) for pair in pairs) and not noise.machines.members:
        say(f"they ran on two machines: intervals allow for {STATED_MACHINE:.1%} between them")
    return _speed_findings(config, matching, metric, noise)


def _speed_findings(
    config: CompareConfig, matching: Matching, metric: Metric, noise: Noise
) -> list[Finding]:
    if config.min_ratio is None:
        return []
    findings = []
    for pair in matching.pairs:
        what = f"{pair[1].label} in {pair[1].measure}"
        ratio, doubt = metric.ratio(pair, noise), _doubt(pair, config)
        findings.append(speed_finding(what, ratio, doubt, config.min_ratio))
    return findings


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
    devices = {cell.row.environment.device for cell in pair}
    if config.checkpoints and len(devices) > 1:
        return "they ran on different devices"
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
