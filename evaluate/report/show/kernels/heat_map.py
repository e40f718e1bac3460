"""The heat map of kernels that were timed alone."""

import altair

from evaluate.report.show.charts.drawing import (
    COLUMN,
    GAP,
    KERNEL_GRID,
    ROW,
    Chart,
    Names,
    finished,
    panels,
    records,
    text_on,
    tips,
)
from evaluate.report.show.charts.speed_charts import EVEN, FASTER, SLOWER

LIMITS = (0.5, 1, 2)


def heat_map(_: Names) -> Chart:
    """Time over torch's, by shape; one panel for each format, codebooks and number of tokens."""
    axes = records(KERNEL_GRID).encode(
        x=altair.X(
            "out_features:O", title="out_features", axis=altair.Axis(labelAngle=0), scale=GAP
        ),
        y=altair.Y("in_features:O", title="in_features", scale=GAP),
        tooltip=tips(
            ("kernel:N", "kernel", ""),
            ("format:N", "product", ""),
            ("cold_us:Q", "µs", ".2f"),
            ("torch_us:Q", "torch bf16 (µs)", ".2f"),
            ("ratio:Q", "ratio, cold cache", ".3f"),
            ("warm_ratio:Q", "ratio, warm cache", ".3f"),
            ("limit_share:Q", "of the limit", ".0%"),
            ("published:Q", "published ratio", ".2f"),
        ),
    )
    tiles = axes.mark_rect().encode(
        color=altair.Color(
            "ratio:Q",
            scale=altair.Scale(
                type="log",
                domain=list(LIMITS),
                range=[FASTER, EVEN, SLOWER],
                interpolate="rgb",
                clamp=True,
            ),
            legend=None,
        )
    )
    labels = axes.mark_text(fontSize=11).encode(
        text=altair.Text("ratio:Q", format=".2f"), color=text_on("color", "ratio")
    )
    sized = (tiles + labels).properties(width=COLUMN * 6, height=altair.Step(ROW))
    return finished(
        "kernel_grid",
        "Kernels beside torch's product in bf16",
        "Time of a kernel over that of torch's product in bf16, with a cold cache, by shape. Blue "
        "is below 1: faster. Orange is slower.",
        KERNEL_GRID,
        panels(sized, "format", 2),
        "ratio",
    )
