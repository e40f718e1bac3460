"""The content of report.json. `report.schema.json` beside this file is its JSON Schema.

A field is added with a default and without a new version. A field that is removed or changes its
meaning raises VERSION.
"""

from dataclasses import dataclass, field

VERSION = 1


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % confidence interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class SpeedUp:
    """Times as fast as the original, with the 95 % interval."""

    value: float
    low: float
    high: float | None
    """Null where it has no upper bound."""
    significant: bool


@dataclass(frozen=True)
class Costs:
    """For a million tokens. Each figure carries the time and energy of input and output."""

    currency: str
    money_per_million_output_tokens: float | None = None
    money_per_million_input_tokens: float | None = None
    joules_per_million_output_tokens: float | None = None
    joules_per_million_input_tokens: float | None = None


@dataclass(frozen=True)
class Accuracy:
    """The quality of a checkpoint relative to the original."""

    verdict: str
    """no loss seen, small loss, loss, broken, the original, or not judged."""
    recovery: Interval | None = None
    """Share of the original's quality, by the measure with the largest loss."""
    measure: str = ""
    on_other_kernels: bool = False
    """Whether it was judged on other kernels than the speed was measured on."""


@dataclass(frozen=True)
class Excluded:
    """A checkpoint that may not be served, and why."""

    checkpoint: str
    reasons: list[str]


@dataclass(frozen=True)
class Recommendation:
    """What to serve for a scenario or a mix."""

    scenario: str
    serve: str | None
    """The checkpoint; null if there is no recommendation."""
    accuracy_judged: bool
    reason: str
    speed_up: SpeedUp | None = None
    level_with: list[str] = field(default_factory=list)
    """Checkpoints without a significant difference from it."""
    next: str | None = None
    would_change: list[str] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    costs: Costs | None = None
    """Of what it serves: over the mix, in the scenario, or at the capacity."""


@dataclass(frozen=True)
class Rank:
    """One checkpoint in one scenario."""

    checkpoint: str
    rank: int | None
    """From 1; statistical ties share it. Null if it cannot be ranked."""
    tied: bool
    runs: int
    speed_up: SpeedUp | None = None
    latency_s: Interval | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    output_tokens_per_s: float | None = None
    """For each GPU."""
    memory_gib: float | None = None
    costs: Costs | None = None


@dataclass(frozen=True)
class Scenario:
    """The choice and the ranks of one scenario."""

    name: str
    share: float
    """Of the mix that the answer is for; 0 if it is not part of it."""
    recommendation: Recommendation
    ranks: list[Rank]


@dataclass(frozen=True)
class CapacityTargets:
    """What a search held: the targets, the share of requests that met them, the traffic."""

    ttft_ms: float | None
    tpot_ms: float | None
    share: float
    traffic: str
    """Where its requests come from."""
    traffic_sha256: str = ""
    """Of all its requests: two traces have different ones."""


@dataclass(frozen=True)
class LimitedBy:
    """The requests that were too late or failed in the trials just above the capacity."""

    ttft_share: float
    """The share of them that missed the target of the first token, and did not fail."""
    tpot_share: float
    """The share of them that missed the target of the further tokens, and not the first one."""
    failed_share: float
    """The share of them that failed."""


@dataclass(frozen=True)
class Capacity:
    """The highest rate of one checkpoint within the targets of a search, for each GPU."""

    scenario: str
    """The name of the search, as its recommendation in `capacity_answers` has it."""
    checkpoint: str
    requests_per_s: Interval
    speed_up: SpeedUp | None = None
    users: float | None = None
    """Requests in progress at once."""
    costs: Costs | None = None
    users_interval: Interval | None = None
    """The same with its interval: that of the rate, for requests as long as at the rate."""
    targets: CapacityTargets | None = None
    limited_by: LimitedBy | None = None
    """What ends the search; null where the rows do not say it."""


@dataclass(frozen=True)
class Checkpoint:
    """A candidate: a checkpoint, with the engine options in which it differs from the others."""

    name: str
    recipe: str
    accuracy: Accuracy
    mix_costs: Costs | None = None
    """Over the mix of the answer."""


@dataclass(frozen=True)
class Missing:
    """Something that was not measured, and the command that measures it."""

    what: str
    command: str


@dataclass(frozen=True)
class Setup:
    """One model on one device in one version of one engine. Nothing is compared across setups."""

    model: str
    device: str
    engine: str
    title: str


@dataclass(frozen=True)
class SetupAnswer:
    """Everything that was decided for one setup."""

    setup: Setup
    answer: Recommendation
    serve_commands: list[str]
    """To serve the answer, in this order; empty if there is none."""
    capacity_answers: list[Recommendation]
    """One for each capacity search."""
    checkpoints: list[Checkpoint]
    scenarios: list[Scenario]
    capacities: list[Capacity]
    missing: list[Missing]


@dataclass(frozen=True)
class ShortAnswer:
    """The answer for one setup, as `--answer=json` prints it."""

    setup: Setup
    answer: Recommendation
    serve_commands: list[str]
    missing: list[Missing]
    capacity_answers: list[Recommendation] = field(default_factory=list)
    """One for each capacity search."""


@dataclass(frozen=True)
class AnswerFile:
    """What `--answer=json` prints."""

    schema_version: int
    setups: list[ShortAnswer]


@dataclass(frozen=True)
class ReportFile:
    """The content of report.json."""

    schema_version: int
    quantline: str
    """The version that wrote it."""
    results: list[str]
    options: list[str]
    """The report's options that differ from their defaults."""
    setups: list[SetupAnswer]
    """The setup with the most runs first."""
    notes: list[str]
    faults: list[str]
    """Lines of the results that could not be read, as file:line."""
