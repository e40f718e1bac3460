"""The data of the page's sliders, for each setup."""

from dataclasses import asdict, astuple, dataclass
from typing import Any

from conf.override_text import command_text, option_text
from conf.schema.report import ReportConfig, TargetsConfig, changed_options
from evaluate.report.decide.commands import (
    accuracy_command,
    candidate_options,
    evaluate_options,
    gaps_of,
    results_option,
    scenario_of,
    serve_commands,
)
from evaluate.report.decide.decision import Answer
from evaluate.report.decide.mix import shares_of
from evaluate.report.decide.rules.facts import SetupFacts
from evaluate.report.machine.build import candidate_rows

MOST_PAIRS = 20_000  # of entries; more would make the page heavy
MOST_REQUESTS = 20_000  # of trials, for the same reason


@dataclass(frozen=True)
class WhatIf:
    """What the sliders of one setup begin with, and the parts of its commands."""

    facts: dict[str, Any]
    weights: dict[str, float]
    """The report's mix, by workload."""
    limits: TargetsConfig
    price_per_hour: float | None
    energy_price_per_kwh: float | None
    currency: str
    serve: list[list[str]]
    """By candidate."""
    measure: list[list[str]]
    """By candidate: the options that measure it."""
    gaps: list[dict[str, list[str]]]
    """By candidate: the workloads that it lacks and a command can measure, with further options."""
    scenarios: dict[str, str]
    """By workload: the name after `scenario=`."""
    evaluate: list[str]
    """The options that measure any candidate."""
    program: str
    results: str
    accuracy: str
    report: str
    options: list[str]
    """Of the report, as it was written."""


def what_if(config: ReportConfig, answer: Answer) -> WhatIf | None:
    """None where there is nothing to choose between, or too much for a page."""
    facts, group = answer.facts, answer.group
    if len(facts.candidates) < 2 or sum(len(one.factors) for one in facts.workloads) > MOST_PAIRS:
        return None
    shares, _ = shares_of(group, config.mix) if group.workloads else ({}, [])
    rows = candidate_rows(answer)
    results = config.results[-1]
    return WhatIf(
        facts=packed(facts),
        weights={name: round(100 * share, 4) for name, share in shares.items()},
        limits=config.targets,
        price_per_hour=config.gpu.price_per_hour,
        energy_price_per_kwh=config.gpu.energy_price_per_kwh,
        currency=config.gpu.currency,
        serve=[serve_commands(rows[candidate.name]) for candidate in facts.candidates],
        measure=[candidate_options([rows[candidate.name]]) for candidate in facts.candidates],
        gaps=gaps_of(group, facts),
        scenarios={workload.name: scenario_of(workload.measure) for workload in group.workloads},
        evaluate=evaluate_options(group),
        program=command_text("evaluate"),
        results=results_option(results),
        accuracy=accuracy_command(group, results),
        report=command_text("evaluate.report", option_text("results", config.results)),
        options=changed_options(config),
    )


def packed(facts: SetupFacts) -> dict[str, Any]:
    """The facts as JSON, with entries and trials as lists in the order of their fields."""
    rates = [rate for search in facts.searches for rate in search.rates]
    requests = sum(len(trial.slowest) for rate in rates for trial in rate.trials)
    content = asdict(facts)
    for workload, own in zip(content["workloads"], facts.workloads, strict=True):
        workload["entries"] = [astuple(entry) for entry in own.entries]
    packed_rates = [rate for search in content["searches"] for rate in search["rates"]]
    for packed_rate, rate in zip(packed_rates, rates, strict=True):
        trials = rate.trials if requests <= MOST_REQUESTS else []
        packed_rate["trials"] = [astuple(trial) for trial in trials]
    return content
