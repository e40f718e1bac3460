"""Charts of speed: the grid, the frontier, the curves, and the share of the limit."""

from typing import Any

import altair

from evaluate.report.drawing import (
    BATCHES,
    CELLS,
    COLOURS,
    COLUMN,
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
    records,
    tips,
)

SLOWER, EVEN, FASTER = "#c0531a", "#f3f1ea", "#0b6fae"
DARK = "#1b1b1b"


def overview(names: Names) -> Chart:
    base = records(CELLS).transform_filter("isValid(datum.speedup)")
    axes = base.encode(
        x=names.columns,
        y=names.rows,
        tooltip=tips(
            *SPEED_TIPS,
            ("latency_s:Q", "latency (s)", ".4g"),
            ("output_tok_s:Q", "output (tok/s)", ",.0f"),
            ("latencies:N", "runs (s)", ""),
        ),
    )
    tiles = axes.mark_rect(stroke="white", strokeWidth=1).encode(
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
    # An original's interval has no width: it is compared with itself.
    level = "!datum.differs && datum.speedup_low < datum.speedup_high"
    label = f"format(datum.speedup, '.2f') + ({level} ? ' =' : '')"
    words = (
        axes.transform_calculate(label=label)
        .mark_text(fontSize=11)
        .encode(
            text="label:N",
            color=altair.condition(
                "datum.speedup > 1.33 || datum.speedup < 0.75",
                altair.value("white"),
                altair.value(DARK),
            ),
        )
    )
    return finished(
        "overview",
        "Times as fast as the original",
        "A grid of scenarios and checkpoints: how many times as fast as the original each one is; "
        "= where it cannot be told from it.",
        CELLS,
        (tiles + words).properties(width=altair.Step(COLUMN), height=altair.Step(ROW)),
    )


def frontier(names: Names) -> Chart:
    points = (
        records(CELLS)
        .transform_filter("isValid(datum.speedup) && isValid(datum.recovery)")
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
        .properties(width=SMALL, height=160)
        .facet(altair.Facet("scenario:N", title=None, sort=names.scenarios), columns=3)
    )
    return finished(
        "frontier",
        "Accuracy against speed",
        "For each scenario, speed-up across and quality left upwards: best is top right.",
        CELLS,
        points,
    )


def batches(names: Names) -> Chart:
    """Speed-up along the batch size, with its interval: at 1 a candidate is no faster."""
    tooltip = tips(*SPEED_TIPS, ("decode_tok_s:Q", "decode (tok/s)", ",.0f"))
    chart = _speedups(records(BATCHES), names.colour, tooltip)
    return finished(
        "batches",
        "Speed-up over the batch size",
        "Lines of the speed-up over the original against the number of requests at once.",
        BATCHES,
        chart.properties(width=WIDTH, height=260)
        .facet(row=altair.Row("family:N", title=None))
        .resolve_scale(y="independent"),
    )


def kernels(_: Names) -> Chart:
    """The same lines by kernel, for checkpoints that ran on several."""
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
        "Lines of the speed-up over the original against the requests at once, kernel by kernel.",
        KERNELS,
        chart.facet(altair.Facet("panel:N", title=None), columns=2),
    )


def _speedups(
    found: altair.Chart, colour: altair.Color, tooltip: list[altair.Tooltip]
) -> altair.LayerChart:
    """Lines over the batch size, each with a band for its interval."""
    base = found.transform_filter("isValid(datum.speedup)")
    base = base.encode(x=_requests_at_once(), color=colour)
    times = altair.Y("speedup:Q", title="times as fast", scale=altair.Scale(zero=False))
    lines = base.mark_line(point=True).encode(y=times, tooltip=tooltip)
    bands = base.mark_area(opacity=0.15).encode(y="speedup_low:Q", y2="speedup_high:Q")
    return altair.LayerChart(layer=[bands, lines])


def _requests_at_once() -> altair.X:
    return altair.X(
        "size:Q",
        title="requests at once",
        scale=altair.Scale(type="log", base=2, nice=False),
        axis=altair.Axis(format=",d", labelOverlap=True),
    )


def contexts(names: Names) -> Chart:
    chart = (
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
            tooltip=tips(
                *SPEED_TIPS,
                ("size:Q", "tokens in", ",d"),
                ("decode_tok_s:Q", "decode (tok/s)", ",.0f"),
                ("need_gib:Q", "memory (GiB)", ".1f"),
            ),
        )
        .properties(width=WIDTH, height=260)
        .facet(row=altair.Row("family:N", title=None))
    )
    return finished(
        "contexts",
        "Speed over the context length",
        "Lines of decoded tokens a second against the length of the input.",
        CONTEXTS,
        chart,
    )


def limits(names: Names) -> Chart:
    axes = records(LIMITS).encode(
        x=names.columns,
        y=names.rows,
        tooltip=tips(
            ("candidate:N", "checkpoint", ""),
            ("scenario:N", "scenario", ""),
            ("phase:N", "phase", ""),
            ("share:Q", "of the limit", ".1%"),
        ),
    )
    shades = axes.mark_rect(stroke="white", strokeWidth=1).encode(
        color=altair.Color(
            "share:Q", scale=altair.Scale(domain=[0, 1], scheme="blues"), legend=None
        )
    )
    words = axes.mark_text(fontSize=10).encode(
        text=altair.Text("share:Q", format=".0%"),
        color=altair.condition("datum.share > 0.6", altair.value("white"), altair.value(DARK)),
    )
    chart: Any = (shades + words).properties(width=altair.Step(COLUMN), height=altair.Step(ROW - 4))
    return finished(
        "limits",
        "Share of the hardware's limit",
        "How near prefill and decode come to the least time that bytes and operations take.",
        LIMITS,
        chart.facet(row=altair.Row("phase:N", title=None, sort=["prefill", "decode"])),
    )
