"""Charts beside speed: memory, engines, operators, layers, and published figures."""

import json
from typing import Any

import altair

from evaluate.profiles import GAPS, KINDS, OTHER, PRODUCTS
from evaluate.report.drawing import (
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
    records,
    tips,
)

PALE = "#d9d9d9"


def capacity(names: Names) -> Chart:
    def bars(value: str, title: str, form: str) -> Any:
        return (
            records(CAPACITY)
            .mark_bar(color=COLOURS[1])
            .encode(
                x=altair.X(f"{value}:Q", title=title, axis=altair.Axis(format=form, tickCount=4)),
                y=names.rows,
                tooltip=tips(("candidate:N", "checkpoint", ""), (f"{value}:Q", title, form)),
            )
            .properties(width=SMALL, height=altair.Step(ROW - 6))
        )

    return finished(
        "capacity",
        "Memory: weights and room for context",
        "Bars of the weights' size, and of the tokens that the KV cache holds beside them.",
        CAPACITY,
        altair.hconcat(
            bars("weights_gib", "weights (GiB)", ".1f"),
            bars("kv_tokens", "KV cache (tokens)", "~s"),
        ),
    )


def engines(names: Names) -> Chart:
    def bars(value: str, title: str) -> Any:
        return (
            records(ENGINES)
            .mark_bar()
            .encode(
                x=altair.X(f"{value}:Q", title=title),
                y=names.rows,
                yOffset="engine:N",
                color=altair.Color("engine:N", title=None, legend=bottom()),
                tooltip=tips(
                    ("candidate:N", "checkpoint", ""),
                    ("scenario:N", "scenario", ""),
                    ("engine:N", "engine", ""),
                    (f"{value}:Q", title, ".3g"),
                ),
            )
            .properties(width=SMALL, height=altair.Step(ROW))
            .facet(row=altair.Row("scenario:N", title=None, sort=names.scenarios))
        )

    return finished(
        "engines",
        "Engines side by side",
        "Bars of the time to the first token and for each further one, engine by engine.",
        ENGINES,
        altair.hconcat(bars("ttft_ms", "TTFT (ms)"), bars("tpot_ms", "TPOT (ms)")),
    )


def profiles(_: Names) -> Chart:
    """Products first; the time in which nothing ran last, and pale."""
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
                axis=altair.Axis(format=".0%"),
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
        "Stacked bars by kind of operator, gaps included, of whatever each profile covers.",
        PROFILES,
        chart,
    )


def sensitivity(_: Names) -> Chart:
    advice = altair.Scale(domain=["quantize", "worth leaving out"], range=[COLOURS[1], COLOURS[2]])
    chart = (
        records(SENSITIVITY)
        .mark_bar()
        .encode(
            x=altair.X("divergence:Q", title="divergence (nats)"),
            y=altair.Y("block:N", title=None, sort=None, axis=altair.Axis(labelLimit=260)),
            color=altair.Color("advice:N", title=None, scale=advice, legend=bottom()),
            tooltip=tips(
                ("block:N", "block", ""), ("divergence:Q", "nats", ".5f"), ("mib:Q", "MiB", ".1f")
            ),
        )
        .properties(width=WIDTH - 140, height=altair.Step(14))
        .facet(row=altair.Row("panel:N", title=None))
    )
    return finished(
        "sensitivity",
        "Which layers pay",
        "Bars of the divergence from the original when one block alone is quantized.",
        SENSITIVITY,
        chart,
    )


def published(names: Names) -> Chart:
    sources = altair.Scale(domain=["here", "published"], range=[COLOURS[1], COLOURS[2]])
    points = (
        records(SWEEP)
        .mark_point(filled=True, size=70)
        .encode(
            x=altair.X("speedup:Q", title="times as fast", scale=altair.Scale(zero=False)),
            y=names.rows,
            shape=altair.Shape("source:N", title=None, scale=altair.Scale(domain=sources.domain)),
            color=altair.Color("source:N", title=None, scale=sources, legend=bottom()),
            tooltip=tips(*SPEED_TIPS, ("source:N", "measured", "")),
        )
        .properties(width=SMALL, height=altair.Step(18))
        .facet(altair.Facet("scenario:N", title=None, sort=names.scenarios), columns=2)
    )
    return finished(
        "published",
        "Against published figures",
        "Points of our speed-ups and of published ones, recipe by recipe and scenario by scenario.",
        SWEEP,
        points,
    )
