"""The tables in the terminal, during an evaluation and at its end."""

from rich.table import Table

from conf.models import ORIGINAL
from evaluate.measure.profiles import ProfiledPhase, phases, readable
from evaluate.results.cells import Cell, by_workload, cells
from evaluate.results.restart_noise import Noise, cell_ratio, noise_of
from evaluate.results.row_values import QuickAccuracy, TaskAccuracy
from evaluate.results.rows import ProfileRow, QuickAccuracyRow, Row, TaskAccuracyRow
from evaluate.results.significance import Ratio

LATENCY_TITLE = "latency (s)"
FIGURES = {
    "ttft_last_s": ("TTFT (ms)", 1e3),
    "tpot_median_s": ("TPOT (ms)", 1e3),
    "generated_tokens_per_s": ("output (tok/s)", 1.0),
}
PROFILE_LINES = 12
WORST_SHOWN = 2
CONTEXT_WIDTH = 50
NAME_WIDTH = 70
PLUS_MINUS = "± is half the width of the 95 % confidence interval, as a share of the value."


def speed_table(rows: list[Row], max_spread: float) -> Table:
    """One line per cell: medians, interval, speed-up over the original, and share of the limit."""
    titles = [LATENCY_TITLE, *(title for title, _ in FIGURES.values())]
    table = Table(
        *("scenario", "checkpoint", "runs", *titles, "±", "times as fast", "of limit", "note"),
        caption=f"{PLUS_MINUS} Here, of the latency.",
        caption_justify="left",
    )
    all_cells = cells(rows)
    noise = noise_of([by_workload(all_cells)])
    previous_measure = ""
    for cell in all_cells:
        if previous_measure and previous_measure != cell.measure:
            table.add_section()
        table.add_row(
            cell.measure if previous_measure != cell.measure else "",
            *_line(cell, all_cells, noise, max_spread),
        )
        previous_measure = cell.measure
    return table


def _ratio_to_original(cell: Cell, all_cells: list[Cell], noise: Noise) -> Ratio | None:
    """The speed-up over the original with the same settings."""
    for other in all_cells:
        same = other.workload_name == cell.workload_name and other.setting == cell.setting
        if same and other.checkpoint == ORIGINAL and other is not cell:
            return cell_ratio(cell, other, noise, cell.workload_name)
    return None


def _line(cell: Cell, all_cells: list[Cell], noise: Noise, max_spread: float) -> list[str]:
    # As in the report: of an open loop, whose duration the arrivals set, that of a request.
    latency = cell.summary(cell.ranked_by)
    figures = [figure(latency.median) if latency else ""]
    for name, (_, scale) in FIGURES.items():
        summary = cell.summary(name)
        figures.append(figure(summary.median * scale) if summary else "")
    spread = ""
    if latency and latency.runs > 1:
        spread = plus_minus(latency.median, latency.low, latency.high)
    ranked = cell.is_ranked(max_spread)
    ratio = _ratio_to_original(cell, all_cells, noise) if ranked else None
    shares = (cell.prefill_share, cell.decode_share)
    reached = " / ".join(f"{share:.0%}" for share in shares if share is not None)
    runs = f"{len(cell.valid)}"
    return [cell.label, runs, *figures, spread, ratio_text(ratio), reached, _note(cell, ranked)]


def figure(value: float) -> str:
    """Three significant digits, without rounding the integer part."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def plus_minus(value: float, low: float, high: float) -> str:
    """The number after every ± sign; PLUS_MINUS explains it."""
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


def ratio_text(ratio: Ratio | None) -> str:
    """A ratio, and whether it is significant."""
    if ratio is None:
        return ""
    if not ratio.differs:
        return f"{ratio.ratio:.2f} (not significant)"
    return f"{ratio.ratio:.2f}"


def accuracy_table(rows: list[Row]) -> Table | None:
    """Recovery and divergence of each checkpoint, with intervals and a verdict."""
    judged = [row for row in rows if isinstance(row, QuickAccuracyRow)]
    if not judged:
        return None
    level = judged[-1].values.interval or 0.99
    table = Table(
        *("accuracy", "checkpoint", "perplexity", f"quality left ({level:.0%} interval)"),
        *("divergence", "99th percentile", "same top token", "agrees for", "verdict"),
    )
    for row in judged:
        table.add_row(row.measure, row.checkpoint, *_accuracy_line(row.values))
    return table


def _accuracy_line(values: QuickAccuracy) -> list[str]:
    recovery = (values.recovery, values.recovery_low, values.recovery_high)
    agreed = (values.agreed_tokens_mean, values.continued_tokens)
    return [
        _format_known("{:.3f}", values.perplexity) or "no number",
        _format_known("{:.2%} ({:.2%} to {:.2%})", *recovery),
        _format_known("{:.4f}", values.divergence_mean),
        _format_known("{:.3f}", values.divergence_p99),
        _format_known("{:.1%}", values.same_top_share),
        _format_known("{:.0f} of {:.0f}", *agreed),
        values.verdict or "",
    ]


def _format_known(template: str, *figures: float | None) -> str:
    """Formats the figures; empty if one of them is None."""
    return "" if None in figures else template.format(*figures)


def worst_table(rows: list[Row]) -> Table | None:
    """The positions with the largest divergence from the original, in context."""
    judged = [row for row in rows if isinstance(row, QuickAccuracyRow) and row.values.worst]
    if not judged:
        return None
    table = Table("checkpoint", "after", "stands there", "original expects", "it expects", "nats")
    for row in judged:
        for position in row.values.worst[:WORST_SHOWN]:
            tokens = (position.stands_there, position.original_expects, position.it_expects)
            before = " ".join(position.before.split())[-CONTEXT_WIDTH:]
            token_texts = [repr(token) for token in tokens]
            table.add_row(row.checkpoint, before, *token_texts, f"{position.divergence:.2f}")
    return table


def questions_table(rows: list[TaskAccuracyRow]) -> Table | None:
    """The harness's tasks: scores, lost and gained questions, and a verdict."""
    if not rows:
        return None
    level = rows[-1].values.interval
    table = Table(
        *("task", "checkpoint", "metric", "questions", "score", f"difference ({level:.0%})"),
        *("lost", "gained", "p", f"quality left ({level:.0%})", "verdict"),
    )
    for row in sorted(rows, key=lambda row: row.measure):
        table.add_row(row.task, row.checkpoint, *_questions_line(row.values))
    return table


def _questions_line(values: TaskAccuracy) -> list[str]:
    metric = values.metric.removesuffix(",none").replace(",", ", ")
    line = [metric, str(values.questions), f"{values.score:.1%}"]
    if values.verdict is None:
        return line
    difference = (values.difference, values.difference_low, values.difference_high)
    recovery = (values.recovery, values.recovery_low, values.recovery_high)
    return [
        *line,
        _format_known("{:+.1%} ({:+.1%} to {:+.1%})", *difference),
        str(values.lost),
        str(values.gained),
        _format_known("{:.2g}", values.p_value),
        _format_known("{:.1%} ({:.1%} to {:.1%})", *recovery),
        values.verdict,
    ]


def lost_table(rows: list[TaskAccuracyRow]) -> Table | None:
    """Some questions that the original answers right and a checkpoint does not."""
    judged = [row for row in rows if row.values.lost_questions]
    if not judged:
        return None
    table = Table("checkpoint", "task", "lost question", "original says", "it says")
    for row in judged:
        for lost in row.values.lost_questions[:WORST_SHOWN]:
            texts = [_short(text) for text in (lost.question, lost.original_says, lost.it_says)]
            table.add_row(row.checkpoint, row.task, *texts)
    return table


def _short(text: str) -> str:
    return " ".join(text.split())[-CONTEXT_WIDTH:]


def profile_tables(rows: list[Row]) -> list[Table]:
    """For each profile, the slowest operators and the shares by kind."""
    return [_profile_table(row) for row in rows if isinstance(row, ProfileRow)]


def _shares(phase: ProfiledPhase) -> str:
    """The time of a step by kind of operator, as one line."""
    ordered = sorted(phase.kinds_s.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{kind} {seconds / phase.window_s:.0%}" for kind, seconds in ordered)
    step = f"a {phase.name} step of " if phase.name else ""
    return f"{step}{phase.window_s / phase.steps * 1e3:.2f} ms: {shares}"


def _profile_table(row: ProfileRow) -> Table:
    values = row.values
    on_gpu = values.device == "gpu"
    decode_steps = (values.steps or 1) - 1
    table = Table(
        "operator",
        "self CPU (ms)",
        *(["self CUDA (ms)"] if on_gpu else []),
        "calls",
        title=f"{row.checkpoint}, {row.measure}: prefill and {decode_steps} decode steps",
        caption="\n".join(_shares(phase) for phase in phases(values)),
    )
    for operator in values.operators[:PROFILE_LINES]:
        table.add_row(
            readable(operator.name)[:NAME_WIDTH],
            f"{operator.self_cpu_s * 1e3:.3f}",
            *([f"{operator.self_cuda_s * 1e3:.3f}"] if on_gpu else []),
            str(operator.calls),
        )
    return table
