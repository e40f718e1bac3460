"""Charts of speed: the grid, the frontier, the curves, and the share of the limit."""

from typing import Any

import altair

from evaluate.report.show.charts.drawing import (
    BATCHES,
    CELLS,
    COLOURS,
    COLUMN,
    COLUMNS_A_PANEL,
    CONTEXTS,
    KERNELS,
    LIMITS,
    ROW,
    SMALL,
    SPEED_TIPS,
    WIDTH,
    Chart,
    Names,
    bottom,
    finished,
    panels,
    records,
    text_on,
    tips,
)

SLOWER, EVEN, FASTER = "#c0531a", "#f3f1ea", "#0b6fae"
WHOLE_NUMBERS = "datum.value % 1 == 0 ? format(datum.value, ',d') : ''"
HAS_SPEEDUP = "isValid(datum.speedup)"


def overview(names: Names) -> Chart:
    tooltip = tips(
        *SPEED_TIPS,
        ("latency_s:Q", "latency (s)", ".4g"),
        ("output_tok_s:Q", "output (tok/s)", ",.0f"),
        ("latencies:N", "runs (s)", ""),
    )
    return finished(
        "overview",
        "Times as fast as the original",
        "Speed-up over the original, by checkpoint and scenario. Blue is faster, orange slower; "
        "= means no significant difference.",
        CELLS,
        speedup_grid(CELLS, names, tooltip),
        "speedup",
    )


def speedup_grid(data: str, names: Names, tooltip: list[altair.Tooltip]) -> Any:
    """Speed-ups as tiles of scenarios and candidates, with ties marked."""
    axes = records(data).encode(x=names.tile_columns, y=names.tile_rows, tooltip=tooltip)
    tiles = axes.mark_rect().encode(
        color=altair.Color(
            "speedup:Q",
            scale=altair.Scale(
                type="log",
                domain=[0.6, 1, 1.7],
                range=[SLOWER, EVEN, FASTER],
                interpolate="rgb",
                clamp=True,
            ),
            legend=None,
        )
    )
    # An original's interval has no width, because it is compared with itself.
    is_tie = "datum.differs === false && datum.speedup_low < datum.speedup_high"
    label = f"format(datum.speedup, '.2f') + ({is_tie} ? ' =' : '')"
    labels = axes.mark_text(fontSize=11).encode(text="label:N", color=text_on("color", "speedup"))
    return names.grid(_sized(tiles + labels, ROW), "speedup", label=label)


def _sized(tiles: altair.LayerChart, row: int) -> altair.LayerChart:
    return tiles.properties(width=COLUMN * COLUMNS_A_PANEL, height=altair.Step(row))


def frontier(names: Names) -> Chart:
    points = panels(
        records(CELLS)
        .transform_filter(f"{HAS_SPEEDUP} && isValid(datum.recovery)")
        .mark_point(filled=True, size=90, opacity=0.9)
        .encode(
            x=altair.X("speedup:Q", title="times as fast", scale=altair.Scale(zero=False)),
            y=altair.Y(
                "recovery:Q",
                title="quality left",
                scale=altair.Scale(zero=False),
                axis=altair.Axis(format=".1%"),
            ),
            color=names.colour,
            tooltip=tips(
                *SPEED_TIPS, ("recovery:Q", "quality left", ".2%"), ("verdict:N", "verdict", "")
            ),
        )
        .properties(width=SMALL, height=160),
        "scenario",
        3,
        names.scenarios,
    )
    return finished(
        "frontier",
        "Accuracy against speed",
        "Quality left against speed-up, scenario by scenario. The best are at the top right.",
        CELLS,
        points,
        "recovery",
    )


def batches(names: Names) -> Chart:
    """Speed-up over the batch size with its interval; at 1 both are equally fast."""
    tooltip = tips(*SPEED_TIPS, ("decode_tok_s:Q", "decode (tok/s)", ",.0f"))
    chart = _speedups(records(BATCHES), names.colour, tooltip, names.dash)
    return finished(
        "batches",
        "Speed-up over the batch size",
        "Speed-up over the original by the number of requests at once; bands are 95 % intervals.",
        BATCHES,
        panels(chart.properties(width=WIDTH, height=280), "family")
        .resolve_scale(y="independent")
        .transform_filter(HAS_SPEEDUP),
        "speedup",
    )


def kernels(_: Names) -> Chart:
    """Speed-up over the batch size by kernel, for checkpoints that ran on several."""
    legend = bottom(symbolType="circle", symbolOpacity=1)
    scale = altair.Scale(range=list(COLOURS[1:]))
    colour = altair.Color("kernel:N", title=None, scale=scale, legend=legend)
    base = records(KERNELS)
    lines = _speedups(base, colour, tips(("kernel:N", "kernel", ""), *SPEED_TIPS))
    even = base.mark_rule(strokeDash=[4, 4], color=COLOURS[0]).encode(y=altair.datum(1))
    chart = (even + lines).properties(width=WIDTH / 2 - 60, height=240)
    return finished(
        "kernels",
        "Which kernel wins",
        "Speed-up over the original by the requests at once, for checkpoints that ran on several "
        "kernels.",
        KERNELS,
        panels(chart, "panel", 2).transform_filter(HAS_SPEEDUP),
        "speedup",
    )


def _speedups(
    chart: altair.Chart,
    colour: altair.Color,
    tooltip: list[altair.Tooltip],
    dash: altair.StrokeDash | None = None,
) -> altair.LayerChart:
    """Lines over the batch size, each with a band for its interval."""
    base = chart.encode(x=_requests_at_once(), color=colour)
    speedup = altair.Y("speedup:Q", title="times as fast", scale=altair.Scale(zero=False))
    lines = base.mark_line(point=True).encode(y=speedup, tooltip=tooltip)
    lines = lines.encode(strokeDash=dash) if dash is not None else lines
    bands = base.mark_area(opacity=0.15).encode(y="speedup_low:Q", y2="speedup_high:Q")
    return altair.LayerChart(layer=[bands, lines])


def _requests_at_once() -> altair.X:
    return altair.X(
        "size:Q",
        title="requests at once",
        scale=altair.Scale(type="log", base=2, nice=False),
        axis=altair.Axis(labelExpr=WHOLE_NUMBERS, labelOverlap=True),
    )


def contexts(names: Names) -> Chart:
    chart = panels(
        records(CONTEXTS)
        .mark_line(point=True)
        .encode(
            x=altair.X(
                "size:Q",
                title="tokens in",
                scale=altair.Scale(nice=False),
                axis=altair.Axis(format=",d", tickCount=8),
            ),
            y=altair.Y("decode_tok_s:Q", title="decode (tok/s)", scale=altair.Scale(zero=False)),
            color=names.colour,
            strokeDash=names.dash,
            tooltip=tips(
                *SPEED_TIPS,
                ("size:Q", "tokens in", ",d"),
                ("decode_tok_s:Q", "decode (tok/s)", ",.0f"),
                ("need_gib:Q", "memory (GiB)", ".1f"),
            ),
        )
        .properties(width=WIDTH, height=280),
        "family",
    )
    return finished(
        "contexts",
        "Speed over the context length",
        "Tokens decoded in a second by the length of the input.",
        CONTEXTS,
        chart,
    )


def limits(names: Names) -> Chart:
    axes = records(LIMITS).encode(
        x=names.tile_columns,
        y=names.tile_rows,
        tooltip=tips(
            ("candidate:N", "checkpoint", ""),
            ("scenario:N", "scenario", ""),
            ("load:N", "load", ""),
            ("phase:N", "phase", ""),
            ("share:Q", "of the limit", ".1%"),
        ),
    )
    shades = axes.mark_rect().encode(
        color=altair.Color(
            "share:Q", scale=altair.Scale(domain=[0, 1], scheme="blues"), legend=None
        )
    )
    labels = axes.mark_text(fontSize=11).encode(
        text=altair.Text("share:Q", format=".0%"), color=text_on("color", "share")
    )
    return finished(
        "limits",
        "Share of the hardware's limit",
        "The least time that the bytes and operations can take, as a share of the time measured; "
        "100 % is the hardware's limit.",
        LIMITS,
        names.grid(_sized(shades + labels, ROW - 2), "share", ("prefill", "decode")),
    )
