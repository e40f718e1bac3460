"""Charts other than speed: memory, engines, operators, layers, and published figures."""

import json
from typing import Any

import altair

from evaluate.measure.profiles import GAPS, KINDS, OTHER, PRODUCTS
from evaluate.report.show.charts.drawing import (
    CAPACITY,
    COLOURS,
    ENGINES,
    PROFILES,
    ROW,
    SENSITIVITY,
    SMALL,
    SPEED_TIPS,
    SWEEP,
    WIDTH,
    Chart,
    Names,
    bottom,
    finished,
    panels,
    records,
    tips,
)

PALE = "#d9d9d9"
BAR_HEIGHT = 12


def capacity(names: Names) -> Chart:
    def bars(value: str, title: str, form: str, exact: str) -> Any:
        base = (
            records(CAPACITY)
            .transform_filter(f"isValid(datum.{value})")
            .encode(
                x=altair.X(
                    f"{value}:Q",
                    title=title,
                    axis=altair.Axis(format=form, tickCount=4),
                    stack=None,
                ),
                y=names.rows,
                tooltip=tips(("candidate:N", "checkpoint", ""), (f"{value}:Q", title, exact)),
            )
        )
        figures = base.mark_text(align="left", dx=4, fontSize=11)
        figures = figures.encode(text=altair.Text(f"{value}:Q", format=form))
        chart = base.mark_bar(color=COLOURS[1]) + figures
        return chart.properties(width=SMALL, height=altair.Step(ROW - 4))

    return finished(
        "capacity",
        "Memory: weights and room for context",
        "Size of the weights, and the tokens that the KV cache holds beside them.",
        CAPACITY,
        altair.concat(
            bars("weights_gib", "weights (GiB)", ".1f", ".2f"),
            bars("kv_tokens", "KV cache (tokens)", ".3~s", ",.0f"),
            columns=2,
        ),
    )


def engines(names: Names) -> Chart:
    palette = altair.Scale(range=list(COLOURS[1:]))

    def bars(value: str, title: str) -> Any:
        return panels(
            records(ENGINES)
            .mark_bar()
            .encode(
                x=altair.X(f"{value}:Q", title=title, axis=altair.Axis(tickCount=5), stack=None),
                y=names.rows,
                yOffset="engine:N",
                color=altair.Color("engine:N", title=None, scale=palette, legend=bottom()),
                tooltip=tips(
                    ("candidate:N", "checkpoint", ""),
                    ("scenario:N", "scenario", ""),
                    ("engine:N", "engine", ""),
                    (f"{value}:Q", title, ".3g"),
                ),
            )
            .properties(width=SMALL, height=altair.Step(BAR_HEIGHT, **{"for": "offset"})),
            "scenario",
            sort=names.scenarios,
        )

    return finished(
        "engines",
        "Engines side by side",
        "Time to the first token (TTFT) and for each further token (TPOT), engine by engine.",
        ENGINES,
        altair.concat(bars("ttft_ms", "TTFT (ms)"), bars("tpot_ms", "TPOT (ms)"), columns=2),
    )


def profiles(_: Names) -> Chart:
    """Time by kind of operator: matrix products first, idle time last and pale."""
    kinds = [PRODUCTS, *(kind for kind, _ in KINDS if kind != PRODUCTS), OTHER, GAPS]
    palette = altair.Scale(domain=kinds, range=[*COLOURS[1 : len(kinds) - 1], COLOURS[0], PALE])
    chart = (
        records(PROFILES)
        .transform_calculate(place=f"indexof({json.dumps(kinds)}, datum.kind)")
        .mark_bar()
        .encode(
            x=altair.X(
                "share:Q",
                title="share of the time",
                axis=altair.Axis(format=".0%", tickCount=5),
                scale=altair.Scale(domain=[0, 1]),
            ),
            y=altair.Y("profile:N", title=None, sort=None, axis=altair.Axis(labelLimit=460)),
            color=altair.Color("kind:N", title=None, scale=palette, legend=bottom(columns=5)),
            order="place:Q",
            tooltip=tips(
                ("profile:N", "profile", ""),
                ("kind:N", "kind", ""),
                ("ms:Q", "ms a step", ".3f"),
                ("share:Q", "share", ".1%"),
            ),
        )
        .properties(width=WIDTH - 320, height=altair.Step(ROW))
    )
    return finished(
        "profiles",
        "Where the time goes",
        "Share of the profiled time by kind of operator; in gaps, no operator ran.",
        PROFILES,
        chart,
    )


def sensitivity(_: Names) -> Chart:
    advice = altair.Scale(domain=["quantize", "worth leaving out"], range=[COLOURS[1], COLOURS[2]])
    chart = panels(
        records(SENSITIVITY)
        .mark_bar()
        .encode(
            x=altair.X("divergence:Q", title="divergence (nats)", stack=None),
            y=altair.Y("block:N", title=None, sort=None, axis=altair.Axis(labelLimit=260)),
            color=altair.Color("advice:N", title=None, scale=advice, legend=bottom()),
            tooltip=tips(
                ("block:N", "block", ""), ("divergence:Q", "nats", ".5f"), ("mib:Q", "MiB", ".1f")
            ),
        )
        .properties(width=WIDTH - 140, height=altair.Step(14)),
        "panel",
    ).resolve_scale(y="independent")
    return finished(
        "sensitivity",
        "Which layers pay",
        "Divergence from the original when this block alone is quantized.",
        SENSITIVITY,
        chart,
    )


def published(names: Names) -> Chart:
    sources = altair.Scale(domain=["here", "published"], range=[COLOURS[1], COLOURS[2]])
    points = panels(
        records(SWEEP)
        .mark_point(filled=True, size=70)
        .encode(
            x=altair.X("speedup:Q", title="times as fast", scale=altair.Scale(zero=False)),
            y=names.rows,
            shape=altair.Shape("source:N", title=None, scale=altair.Scale(domain=sources.domain)),
            color=altair.Color("source:N", title=None, scale=sources, legend=bottom()),
            tooltip=tips(*SPEED_TIPS, ("source:N", "measured", "")),
        )
        .properties(width=SMALL, height=altair.Step(22)),
        "scenario",
        4,
        names.scenarios,
    )
    return finished(
        "published",
        "Against published figures",
        "Speed-ups measured here and published ones, recipe by recipe, in scenarios with the "
        "published batch and lengths.",
        SWEEP,
        points,
    )
