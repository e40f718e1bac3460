"""The chart of throughput against interactivity."""

import altair

from evaluate.report.show.charts.drawing import (
    TRIALS,
    WIDTH,
    Chart,
    Names,
    finished,
    records,
    tips,
)

HEIGHT = 320


def interactivity(names: Names) -> Chart:
    """Every whole trial, and a line through those that no other one beats in both."""
    base = records(TRIALS).encode(
        x=altair.X("user_tok_s:Q", title="tokens/s for each user", scale=altair.Scale(zero=False)),
        y=altair.Y("gpu_tok_s:Q", title="output tokens/s for each GPU"),
        tooltip=tips(
            ("candidate:N", "checkpoint", ""),
            ("scenario:N", "scenario", ""),
            ("rate:Q", "requests/s per GPU", ".3g"),
            ("meets:N", "meets the targets", ""),
            ("user_tok_s:Q", "tokens/s per user", ".3g"),
            ("gpu_tok_s:Q", "tokens/s per GPU", ".4g"),
        ),
    )
    points = base.mark_point(size=60, filled=True, opacity=0.9).encode(
        color=names.colour,
        shape=altair.Shape(
            "meets:N",
            legend=None,
            scale=altair.Scale(domain=["yes", "no"], range=["circle", "cross"]),
        ),
    )
    front = (
        base.transform_filter("datum.is_best")
        .mark_line(color="#888888", strokeDash=[4, 3], interpolate="step-after")
        .encode(order="user_tok_s:Q", tooltip=altair.value(None))
    )
    return finished(
        "interactivity",
        "Throughput against interactivity",
        "Each point is a trial of the capacity search; crosses missed the targets. The line joins "
        "the trials that no other one beats in both.",
        TRIALS,
        (front + points).properties(width=WIDTH, height=HEIGHT),
    )
