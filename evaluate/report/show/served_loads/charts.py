"""The charts of served loads and of batch sizes."""

import altair

from evaluate.report.show.charts.drawing import (
    BATCH_POINTS,
    TIMELINES,
    WIDTH,
    Chart,
    Names,
    finished,
    panels,
    records,
    tips,
)

HEIGHT = 300


def timelines(names: Names) -> Chart:
    """Requests in progress over time, a panel for each load."""
    lines = (
        records(TIMELINES)
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(
            x=altair.X("second:Q", title="seconds since the first request"),
            y=altair.Y("in_progress:Q", title="requests in progress"),
            color=names.colour,
            tooltip=tips(
                ("candidate:N", "checkpoint", ""),
                ("title:N", "scenario", ""),
                ("second:Q", "second", ".3g"),
                ("in_progress:Q", "in progress", ""),
            ),
        )
        .properties(width=WIDTH / 2 - 60, height=200)
    )
    return finished(
        "timelines",
        "Requests over time",
        "Requests in progress in one run of each served load, and in one trial at the rate that a "
        "capacity search found. A line that keeps rising means that more requests arrive than are "
        "answered.",
        TIMELINES,
        panels(lines, "title", 2, names.scenarios).resolve_scale(x="independent", y="independent"),
    )


def batch_points(names: Names) -> Chart:
    """Throughput against interactivity over batch sizes, with the Pareto front."""
    base = records(BATCH_POINTS).encode(
        x=altair.X("user_tok_s:Q", title="tokens/s for each user", scale=altair.Scale(zero=False)),
        y=altair.Y("gpu_tok_s:Q", title="output tokens/s for each GPU"),
        tooltip=tips(
            ("candidate:N", "checkpoint", ""),
            ("size:Q", "requests at once", ""),
            ("user_tok_s:Q", "tokens/s per user", ".3g"),
            ("gpu_tok_s:Q", "tokens/s per GPU", ".4g"),
        ),
    )
    lines = base.mark_line(opacity=0.5, strokeWidth=1.2).encode(
        color=names.colour, order="size:Q", tooltip=altair.value(None)
    )
    points = base.mark_point(size=50, filled=True, opacity=0.9).encode(color=names.colour)
    front = (
        base.transform_filter("datum.is_best")
        .mark_line(color="#888888", strokeDash=[4, 3], interpolate="step-after")
        .encode(order="user_tok_s:Q", tooltip=altair.value(None))
    )
    layered = altair.LayerChart(layer=[front, lines, points])
    return finished(
        "pareto",
        "Throughput against interactivity, by batch size",
        "Each point is a batch size. The dashed line is the Pareto front: no other point has more "
        "tokens for each user and for each GPU.",
        BATCH_POINTS,
        panels(layered.properties(width=WIDTH, height=HEIGHT), "family").resolve_scale(
            x="independent", y="independent"
        ),
    )
