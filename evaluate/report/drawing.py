"""What all charts share: colours, hovers, and the words for those who do not see them."""

from dataclasses import dataclass, field, replace
from typing import Any

import altair

CELLS, BATCHES, CONTEXTS, CAPACITY = "cells", "batches", "contexts", "capacity"
KERNELS, LIMITS, PROFILES = "kernels", "limits", "profiles"
SENSITIVITY = "sensitivity"
SWEEP, ENGINES, OPERATORS = "sweep", "engines", "operators"
WIDTH = 760
ROW = 26
COLUMN = 58
SMALL = 200
# Colours that stay apart for the colour-blind, on white and on dark (after Okabe and Ito).
COLOURS = (
    *("#888888", "#0a84c8", "#e08600", "#009e73", "#d15a9b", "#9a6bd6", "#c04a1a", "#56b4e9"),
    *("#8a8a00", "#006b5e", "#a05a2c", "#5f7fbf", "#b03060", "#4f9d2f", "#7a5195", "#d0a000"),
)
SPEED_TIPS = (
    ("candidate:N", "checkpoint", ""),
    ("scenario:N", "scenario", ""),
    ("speedup:Q", "times as fast", ".3f"),
    ("speedup_low:Q", "at least", ".3f"),
    ("speedup_high:Q", "at most", ".3f"),
)


@dataclass
class Chart:
    """One chart and what it says to those who do not see it."""

    name: str
    title: str
    description: str
    data: str
    """The set of records it draws."""
    spec: dict[str, Any]


@dataclass
class Names:
    """Orders that all charts keep, so that a colour and a place mean the same everywhere."""

    candidates: list[str]
    scenarios: list[str]
    shown: list[str] = field(default_factory=list)
    """The candidates that a chart's legend names."""

    def of(self, found: list[dict[str, Any]]) -> "Names":
        """For a chart of these records."""
        drawn = {record.get("candidate") for record in found}
        return replace(self, shown=[name for name in self.candidates if name in drawn])

    @property
    def colour(self) -> altair.Color:
        palette = [COLOURS[place % len(COLOURS)] for place in range(len(self.candidates))]
        return altair.Color(
            "candidate:N",
            title=None,
            scale=altair.Scale(domain=self.candidates, range=palette),
            legend=bottom(
                columns=3, labelLimit=260, symbolType="circle", symbolOpacity=1, values=self.shown
            ),
        )

    @property
    def rows(self) -> altair.Y:
        axis = altair.Axis(labelLimit=260)
        return altair.Y("candidate:N", title=None, sort=self.candidates, axis=axis)

    @property
    def columns(self) -> altair.X:
        axis = altair.Axis(labelAngle=-30)
        return altair.X("scenario:N", title=None, sort=self.scenarios, axis=axis)


def bottom(**settings: Any) -> altair.Legend:
    return altair.Legend(orient="bottom", **settings)


def records(name: str) -> altair.Chart:
    """A chart of a named set, which the page filters before it is drawn."""
    return altair.Chart(altair.NamedData(name=name))


def finished(name: str, title: str, description: str, data: str, chart: Any) -> Chart:
    spec = chart.to_dict(validate=False)
    spec.pop("config", None)
    return Chart(name, title, description, data, spec | {"description": description})


def tips(*shown: tuple[str, str, str]) -> list[altair.Tooltip]:
    """Name, title and format of what a hover shows."""
    return [altair.Tooltip(name, title=title, format=form) for name, title, form in shown]
