"""The table that fills while an evaluation runs, and stands at its end."""

from collections import defaultdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from conf.models import ORIGINAL
from evaluate.measure.profiles import phases, readable
from evaluate.results.cells import Cell, cells
from evaluate.results.restart_noise import Noise, noise_of, ratio_of
from evaluate.results.rows import Row
from evaluate.results.significance import Ratio

FIGURES = {
    "latency_s": ("latency (s)", 1.0),
    "ttft_last_s": ("TTFT (ms)", 1e3),
    "tpot_median_s": ("TPOT (ms)", 1e3),
    "generated_tokens_per_s": ("output (tok/s)", 1.0),
}
SIDES = ("prefill", "decode")
PROFILE_LINES = 12
WORST_SHOWN = 2
CONTEXT_WIDTH = 50
NAME_WIDTH = 70
PLUS_MINUS = "± is half the width of the 95 % confidence interval, as a share of the value."


def speed_table(rows: list[Row], max_spread: float) -> Table:
    """One line a cell: medians, their interval, against the original, and the limit's share."""
    titles = [title for title, _ in FIGURES.values()]
    table = Table(
        *("scenario", "checkpoint", "runs", *titles, "±", "times as fast", "of limit", "note"),
        caption=f"{PLUS_MINUS} Here, of the latency.",
        caption_justify="left",
    )
    found = cells(rows)
    noise = noise_of([_by_load(found)])
    before = ""
    for cell in found:
        if before and before != cell.measure:
            table.add_section()
        table.add_row(
            cell.measure if before != cell.measure else "", *_line(cell, found, noise, max_spread)
        )
        before = cell.measure
    return table


def _by_load(found: list[Cell]) -> dict[str, list[Cell]]:
    loads: dict[str, list[Cell]] = defaultdict(list)
    for cell in found:
        loads[cell.load_name].append(cell)
    return loads


def _against_original(cell: Cell, found: list[Cell], noise: Noise) -> Ratio | None:
    """How many times as fast as the original under the same settings it is."""
    for other in found:
        same = other.load_name == cell.load_name and other.setting == cell.setting
        if same and other.checkpoint == ORIGINAL and other is not cell:
            return ratio_of(cell, other, noise, cell.load_name)
    return None


def _line(cell: Cell, found: list[Cell], noise: Noise, max_spread: float) -> list[str]:
    figures = []
    for name, (_, scale) in FIGURES.items():
        summary = cell.summary(name)
        figures.append(figure(summary.median * scale) if summary else "")
    latency = cell.summary(cell.ranked_by)
    spread = ""
    if latency and latency.runs > 1:
        spread = plus_minus(latency.median, latency.low, latency.high)
    ranked = cell.is_ranked(max_spread)
    ratio = _against_original(cell, found, noise) if ranked else None
    shares = [cell.share(side) for side in SIDES]
    reached = " / ".join(f"{share:.0%}" for share in shares if share is not None)
    runs = f"{len(cell.valid)}"
    return [cell.label, runs, *figures, spread, words(ratio), reached, _note(cell, ranked)]


def figure(value: float) -> str:
    """Three digits that mean something, and no more than the whole number has."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def plus_minus(value: float, low: float, high: float) -> str:
    """What stands behind every ± that is shown; PLUS_MINUS says it."""
    return f"{(high - low) / 2 / value:.1%}" if value else ""


def _note(cell: Cell, ranked: bool) -> str:
    if cell.invalid:
        return f"{len(cell.invalid)} invalid: {cell.invalid[0].invalid[0]}"
    latency = cell.summary(cell.ranked_by)
    if not ranked:
        return "too much spread to rank"
    if latency and latency.outliers:
        return f"{len(latency.outliers)} outlier left out"
    return ""


def words(ratio: Ratio | None) -> str:
    """A ratio, and whether it is significant."""
    if ratio is None:
        return ""
    if not ratio.differs:
        return f"{ratio.ratio:.2f} (not significant)"
    return f"{ratio.ratio:.2f}"


def accuracy_table(rows: list[Row]) -> Table | None:
    """What is left of the original, with intervals, and a verdict."""
    judged = [row for row in rows if row.kind == "accuracy"]
    if not judged:
        return None
    level = judged[-1].values.get("interval", 0.99)
    table = Table(
        *("accuracy", "checkpoint", "perplexity", f"quality left ({level:.0%} interval)"),
        *("divergence", "99th percentile", "same top token", "agrees for", "verdict"),
    )
    for row in judged:
        table.add_row(row.measure, row.checkpoint, *_accuracy_line(row.values))
    return table


def _accuracy_line(values: dict[str, Any]) -> list[str]:
    perplexity = f"{values['perplexity']:.3f}" if "perplexity" in values else "no number"
    return [
        perplexity,
        _filled("{:.2%} ({:.2%} to {:.2%})", values, "recovery", "recovery_low", "recovery_high"),
        _filled("{:.4f}", values, "divergence_mean"),
        _filled("{:.3f}", values, "divergence_p99"),
        _filled("{:.1%}", values, "same_top_share"),
        _filled("{:.0f} of {:.0f}", values, "agreed_tokens_mean", "continued_tokens"),
        str(values.get("verdict", "")),
    ]


def _filled(words: str, values: dict[str, Any], *names: str) -> str:
    """Figures in words; nothing where one of them was not measured."""
    figures = [values.get(name) for name in names]
    return "" if None in figures else words.format(*figures)


def worst_table(rows: list[Row]) -> Table | None:
    """Where checkpoints are furthest from the original, in context."""
    judged = [row for row in rows if row.values.get("worst")]
    if not judged:
        return None
    table = Table("checkpoint", "after", "stands there", "original expects", "it expects", "nats")
    for row in judged:
        for place in row.values["worst"][:WORST_SHOWN]:
            words = [place[part] for part in ("stands_there", "original_expects", "it_expects")]
            before = " ".join(place["before"].split())[-CONTEXT_WIDTH:]
            shown = [escape(repr(word)) for word in words]
            table.add_row(row.checkpoint, escape(before), *shown, f"{place['divergence']:.2f}")
    return table


def questions_table(rows: list[Row]) -> Table | None:
    """The harness's tasks: scores, what was lost and gained, and a verdict."""
    if not rows:
        return None
    level = rows[-1].values["interval"]
    table = Table(
        *("task", "checkpoint", "metric", "questions", "score", f"difference ({level:.0%})"),
        *("lost", "gained", "p", f"quality left ({level:.0%})", "verdict"),
    )
    for row in sorted(rows, key=lambda row: row.measure):
        name = row.measure.partition(":")[2]
        table.add_row(escape(name), row.checkpoint, *_questions_line(row.values))
    return table


def _questions_line(values: dict[str, Any]) -> list[str]:
    metric = values["metric"].removesuffix(",none").replace(",", ", ")
    line = [metric, str(values["questions"]), f"{values['score']:.1%}"]
    if "verdict" not in values:
        return line
    apart = [values[name] for name in ("difference", "difference_low", "difference_high")]
    left = [values.get(name) for name in ("recovery", "recovery_low", "recovery_high")]
    return [
        *line,
        f"{apart[0]:+.1%} ({apart[1]:+.1%} to {apart[2]:+.1%})",
        str(values["lost"]),
        str(values["gained"]),
        f"{values['p_value']:.2g}",
        f"{left[0]:.1%} ({left[1]:.1%} to {left[2]:.1%})" if None not in left else "",
        str(values["verdict"]),
    ]


def lost_table(rows: list[Row]) -> Table | None:
    """Some questions that the original answers and a checkpoint no longer does."""
    judged = [row for row in rows if row.values.get("lost_questions")]
    if not judged:
        return None
    table = Table("checkpoint", "task", "lost question", "original says", "it says")
    for row in judged:
        for lost in row.values["lost_questions"][:WORST_SHOWN]:
            words = [_short(lost[part]) for part in ("question", "original_says", "it_says")]
            table.add_row(row.checkpoint, escape(row.measure.partition(":")[2]), *words)
    return table


def _short(text: str) -> str:
    return escape(" ".join(text.split())[-CONTEXT_WIDTH:])


def profile_tables(rows: list[Row]) -> list[Table]:
    """For each profile the operators that take most, and the shares of their kinds."""
    return [_profile_table(row) for row in rows if row.kind == "profile"]


def _shares(phase: str, steps: int, window: float, kinds: dict[str, float]) -> str:
    """The time of a step by kind of operator, as one line."""
    ordered = sorted(kinds.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{kind} {seconds / window:.0%}" for kind, seconds in ordered)
    return f"{f'a {phase} step of ' if phase else ''}{window / steps * 1e3:.2f} ms: {shares}"


def _profile_table(row: Row) -> Table:
    values = row.values
    on_gpu = values["device"] == "gpu"
    table = Table(
        "operator",
        "self CPU (ms)",
        *(["self CUDA (ms)"] if on_gpu else []),
        "calls",
        title=f"{row.checkpoint}, {row.measure}: prefill and {values['steps'] - 1} decode steps",
        caption="\n".join(_shares(*part) for part in phases(values)),
    )
    for line in values["operators"][:PROFILE_LINES]:
        table.add_row(
            readable(line["name"])[:NAME_WIDTH],
            f"{line['self_cpu_s'] * 1e3:.3f}",
            *([f"{line['self_cuda_s'] * 1e3:.3f}"] if on_gpu else []),
            str(line["calls"]),
        )
    return table
