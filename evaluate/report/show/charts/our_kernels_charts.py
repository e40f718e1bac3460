"""Charts of our kernels: what they gain, and the map of which product runs for how many tokens."""

import itertools
from collections.abc import Sequence

import altair

from evaluate.report.show.charts.drawing import (
    BANDS,
    COLOURS,
    GAINS,
    ROW,
    SPEED_TIPS,
    WIDTH,
    Chart,
    Names,
    bottom,
    finished,
    records,
    text_on,
    tips,
)
from evaluate.report.show.charts.speed_charts import WHOLE_NUMBERS, speedup_grid
from evaluate.report.show.our_kernels.records import VLLMS_OWN

LETTER = 6.6  # pixels of a letter, on average
GAP = 1  # pixels between bands
HEADING_LEFT = 96  # pixels that a checkpoint's name begins left of the bands
CALM_FIRST = (
    *("#5f7fbf", "#009e73", "#e08600", "#56b4e9", "#9a6bd6", "#c04a1a", "#d0a000", "#0a84c8"),
    *("#d15a9b", "#8a8a00", "#006b5e", "#a05a2c", "#b03060", "#4f9d2f", "#7a5195"),
)
"""The colours of all charts, for products in the order of the room that they take."""
IS_HEADING = "datum.layers === ''"
ROW_GAPS = altair.Scale(paddingInner=0.16, paddingOuter=0.08)


def gains(names: Names) -> Chart:
    tiles = speedup_grid(
        GAINS,
        names,
        tips(
            *SPEED_TIPS,
            ("ttft:Q", "TTFT, times as fast", ".3f"),
            ("tpot:Q", "TPOT, times as fast", ".3f"),
        ),
    )
    return finished(
        "gains",
        "Our kernels: times as fast as vLLM's own",
        "Speed-up of our kernels over vLLM's own for the same checkpoint on the same machine. Blue "
        "is faster, orange slower; = means no significant difference.",
        GAINS,
        tiles,
        "speedup",
    )


def hand_overs(products: Sequence[str], _: Names) -> Chart:
    """Bands over the number of tokens: layers are rows below their checkpoint, products are
    colours. All marks draw all records, or the rows would lose their order."""
    axes = records(BANDS).encode(
        y=altair.Y("row:N", title=None, sort=None, scale=ROW_GAPS, axis=_layer_names())
    )
    end = altair.Tooltip("tokens:N", title="tokens")
    names = tips(("candidate:N", "checkpoint", ""), ("layers:N", "layers", ""))
    product = altair.Tooltip("product:N", title="product")
    axes = axes.encode(tooltip=[*names, end, product])
    bands = axes.mark_rect(x2Offset=-GAP, invalid=None).encode(
        x=_tokens(),
        x2="end:Q",
        color=_product_colours(products),
        opacity=altair.condition(IS_HEADING, altair.value(0), altair.value(1)),
    )
    # A label stands in a band that is wide enough for it; the colour says the same.
    fits = f"scale('x', datum.end) - scale('x', datum.first) > length(datum.short) * {LETTER}"
    labels = axes.mark_text(fontSize=11, invalid=None).encode(
        x="middle:Q",
        text=altair.condition(fits, altair.Text("short:N"), altair.value("")),
        color=text_on("color", "short"),
    )
    limit = altair.ExprRef(f"width + {HEADING_LEFT}")
    headings = axes.mark_text(align="left", fontSize=12, fontWeight=600, limit=limit).encode(
        x=altair.value(-HEADING_LEFT),
        text=altair.condition(IS_HEADING, altair.Text("candidate:N"), altair.value("")),
    )
    chart = altair.layer(bands, labels, headings)
    return finished(
        "hand-overs",
        "Our kernels: which product runs for how many tokens",
        "For each checkpoint, what its layers ran by the number of tokens in a step: few tokens "
        "while requests decode, many for prompts. It hands over where the colour changes; the last "
        "product runs for all larger numbers.",
        BANDS,
        chart.transform_calculate(middle="sqrt(datum.first * datum.end)").properties(
            width=WIDTH - 160, height=altair.Step(ROW - 2)
        ),
    )


def _layer_names() -> altair.Axis:
    """A row is named by its checkpoint and its layers, on two lines; the axis shows the second."""
    return altair.Axis(labelExpr="split(datum.label, '\\n')[1]", domain=False, ticks=False)


def _tokens() -> altair.X:
    return altair.X(
        "first:Q",
        title="tokens in one step",
        scale=altair.Scale(type="log", base=2, nice=False),
        axis=altair.Axis(labelExpr=WHOLE_NUMBERS, labelOverlap=True, grid=False),
    )


def _product_colours(products: Sequence[str]) -> altair.Color:
    """vLLM's own kernel is grey."""
    colours = itertools.cycle(CALM_FIRST)
    palette = {name: COLOURS[0] if name == VLLMS_OWN else next(colours) for name in products}
    return altair.Color(
        "short:N",
        title=None,
        scale=altair.Scale(domain=[*palette], range=[*palette.values()]),
        legend=bottom(columns=4, symbolType="square", symbolOpacity=1),
    )
