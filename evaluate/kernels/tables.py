"""The tables of a grid, in Markdown and CSV, with the published figures beside ours."""

import csv
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conf.errors import writing
from conf.files.new_folder import new_folder
from conf.files.write_whole import write_alone
from evaluate.report.published.figures import KernelFigure, kernel_figures, sources
from evaluate.results.rows import KernelRow

BESIDE_UNSTATED = (8192, 256)
"""Our codebooks beside a published table that does not state its own."""
MILLI = 1e-3
UNUSED = ("", "0")
"""Cells of columns that Markdown leaves out where they have nothing else."""
COLUMNS = (
    *("published as", "format", "layer", "tokens", "in_features", "out_features", "main_centroids"),
    *("residual_centroids", "kernel (ms)", "torch (ms)", "ratio", "ratio low", "ratio high"),
    *("warm (ms)", "warm torch (ms)", "warm ratio", "of the limit", "error"),
    *("published (ms)", "published torch (ms)", "published ratio", "kernel"),
)


@dataclass(frozen=True)
class Line:
    """Our figures, and the published ones of the same shape if there are any."""

    row: KernelRow
    published: KernelFigure | None = None

    def cells(self) -> list[str]:
        settings, values = self.row.settings, self.row.values
        cold, beside = values.cold, values.torch_cold
        warm, warm_beside = values.warm, values.torch_warm
        # Only such rows are shown: see `is_whole`.
        assert cold is not None
        assert beside is not None
        assert warm is not None
        assert warm_beside is not None
        figure = self.published
        return [
            *(figure.source if figure else "", settings.format, settings.layer),
            *map(str, (settings.tokens, settings.in_features, settings.out_features)),
            *map(str, (settings.main_centroids, settings.residual_centroids)),
            *(
                _ms(cold.median_us),
                _ms(beside.median_us),
                f"{cold.median_us / beside.median_us:.2f}",
            ),
            f"{cold.low_us / beside.high_us:.2f}",
            f"{cold.high_us / beside.low_us:.2f}",
            *(_ms(warm.median_us), _ms(warm_beside.median_us)),
            f"{warm.median_us / warm_beside.median_us:.2f}",
            f"{values.limit_share:.0%}" if values.limit_share is not None else "",
            f"{values.error:.4f}" if values.error is not None else "",
            *((f"{figure.vptq_ms:.4f}", f"{figure.torch_ms:.4f}") if figure else ("", "")),
            f"{figure.ratio:.2f}" if figure else "",
            f"{self.row.checkpoint}, {values.options}",
        ]


def lines(rows: Iterable[KernelRow]) -> list[Line]:
    """A line for each row and published figure of its shape, in the order of the rows."""
    figures = kernel_figures()
    found: dict[str, list[Line]] = {}
    for row in rows:
        if not is_whole(row):
            continue
        settings = row.settings
        shape = (settings.tokens, settings.in_features, settings.out_features)
        books = (settings.main_centroids, settings.residual_centroids)
        matching: list[KernelFigure | None] = [
            figure
            for figure in figures
            if (figure.tokens, figure.in_features, figure.out_features) == shape
            and books == (_books(figure) if any(_books(figure)) else BESIDE_UNSTATED)
        ]
        for figure in matching or [None]:
            place = figure.source if figure else ""
            found.setdefault(place, []).append(Line(row, figure))
    return [line for place in sorted(found) for line in found[place]]


def is_whole(row: KernelRow) -> bool:
    """Whether a row has all times, and the right result."""
    values = row.values
    times = (values.cold, values.warm, values.torch_cold, values.torch_warm)
    return not row.invalid and None not in times


def _books(figure: KernelFigure) -> tuple[int, int]:
    return figure.main_centroids, figure.residual_centroids


def write_tables(rows: Sequence[KernelRow], out: Path) -> list[Line]:
    """Writes kernels.md and kernels.csv, each whole or not at all."""
    shown = lines(rows)
    markdown, table = table_files(out)
    with (
        writing(out),
        new_folder(out),
        writing(table),
        write_alone(table) as unfinished,
        unfinished.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(line.cells() for line in shown)
    with writing(markdown), write_alone(markdown) as unfinished:
        unfinished.write_text("\n".join(_markdown(shown)) + "\n", encoding="utf-8")
    return shown


def table_files(out: Path) -> tuple[Path, Path]:
    """The tables in Markdown and in CSV."""
    return out / "kernels.md", out / "kernels.csv"


def summary(shown: Sequence[Line]) -> str:
    """How many lines are faster than torch's, in one sentence."""
    ratios = [ratio for line in shown if (ratio := line.row.values.ratio) is not None]
    warm = [ratio for line in shown if (ratio := line.row.values.warm_ratio) is not None]
    if not ratios:
        return "nothing was measured"
    return (
        f"faster than torch's bf16 in {sum(ratio < 1 for ratio in ratios)} of {len(ratios)} lines "
        f"with a cold cache (median ratio {statistics.median(ratios):.2f}, largest "
        f"{max(ratios):.2f}), in {sum(ratio < 1 for ratio in warm)} with a warm one (median "
        f"{statistics.median(warm):.2f})"
    )


def _markdown(shown: Sequence[Line]) -> list[str]:
    text = ["# Kernels beside torch's product in bf16", "", f"{summary(shown).capitalize()}.", ""]
    text += ["Ratios are times over torch's: below 1 is faster. Low and high are the ends of 95 %",
             "intervals. `Cold` is without a word: no weight is in the L2 cache.", ""]  # fmt: skip
    known = sources()
    for name in dict.fromkeys(line.published.source for line in shown if line.published):
        source = known[name]
        text += [f"- {name}: {source.title}; hardware {source.hardware}.", ""]
    columns = zip(COLUMNS, *(line.cells() for line in shown), strict=True)
    used = [column for column in columns if any(cell not in UNUSED for cell in column[1:])]
    rows = [list(row) for row in zip(*used, strict=True)]
    if not rows:
        return text
    widths = [max(map(len, column)) for column in used]
    rows.insert(1, ["-" * width for width in widths])
    return [*text, *("| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows)]


def _ms(microseconds: float) -> str:
    return f"{microseconds * MILLI:.4f}"
