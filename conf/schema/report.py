"""Options of reports and comparisons: result files, targets, mix of workloads."""

from dataclasses import asdict, dataclass, field
from typing import Any

from conf.override_text import command_text, option_text
from conf.schema.load import GpuConfig
from conf.schema.ranges import MILLISECONDS_MOST, above, choices, not_empty

MAX_SPREAD = 0.1
SPREAD = above(0, 100)
SHARE = above(0, 1e9)
ANSWER_TEXT, ANSWER_JSON = "text", "json"
PRICES = ("price_per_hour", "energy_price_per_kwh", "currency")


@dataclass
class TargetsConfig:
    """Limits that a checkpoint must meet to be recommended; null is no limit."""

    ttft_ms: float | None = field(default=None, metadata=above(0, MILLISECONDS_MOST))
    """Longest time to the first token: of the last request in a batch, or the 99th percentile of a
    sustained workload."""
    tpot_ms: float | None = field(default=None, metadata=above(0, MILLISECONDS_MOST))
    """Longest time for each token after the first."""
    min_recovery: float | None = field(default=None, metadata=above(0, 1))
    """Lowest recovery (share of the original's quality), as 0.99; null: no significant loss."""
    max_memory_gib: float | None = field(default=None, metadata=above(0, 1e6))
    """Most memory for weights, graphs and the workload's own KV cache."""
    allow_unjudged: bool = False
    """Recommend a checkpoint even if its accuracy was not judged and that of others was."""


@dataclass
class ReportConfig:
    """Writes the report from results: what to serve, and how certain that is."""

    results: list[str] = field(default_factory=lambda: ["results.jsonl"], metadata=not_empty())
    """Files of results."""
    out: str = field(default="report", metadata=not_empty())
    """Folder for report.html, report.md, report.json, the plots and the tables."""
    targets: TargetsConfig = field(default_factory=TargetsConfig)
    mix: dict[str, float] = field(default_factory=dict, metadata=SHARE)
    """Shares of the service's time by scenario, as mix.interactive=0.6; empty is equal
    shares of every standard scenario."""
    max_spread: float = field(default=MAX_SPREAD, metadata=SPREAD)
    """Relative deviation of the latency above which a cell is not ranked."""
    gpu: GpuConfig = field(default_factory=GpuConfig)
    answer: str | None = field(default=None, metadata=choices(ANSWER_TEXT, ANSWER_JSON))
    """text or json: print the answer alone, and write no files. `--answer` and `--answer=json` for
    short."""

    def __post_init__(self) -> None:
        if not self.results:
            raise ValueError("results=[]: name a file of results")


@dataclass
class MergeConfig:
    """Adds the rows that the jobs of a sweep left in their shards to the results file."""

    results: str = field(default="results.jsonl", metadata=not_empty())
    """The results file of the sweep. Its shards are in the folder FILE.d."""


@dataclass
class CompareConfig:
    """Says whether one set of runs is significantly faster or more accurate than another."""

    results: list[str] = field(default_factory=lambda: ["results.jsonl"], metadata=not_empty())
    """Two files to compare, or one or more that hold two checkpoints."""
    checkpoints: list[str] | None = None
    """Two checkpoints to compare within the results; null compares two files."""
    value: str | None = None
    """The metric to compare: a time, a rate or an energy, as ttft_last_s. null is the time that
    ranks setups in the report: the latency, or a request's where requests arrive by themselves."""
    max_spread: float = field(default=MAX_SPREAD, metadata=SPREAD)
    """Relative deviation of the latency above which a cell is not judged."""
    min_ratio: float | None = field(default=None, metadata=above(0, 100))
    """Gate: the second must be at least this many times as fast in every workload, as 0.98. Exit 4
    where it is slower, 5 where the interval cannot tell."""
    min_recovery: float | None = field(default=None, metadata=above(0, 1))
    """Gate: the second must keep at least this share of the original's quality, as 0.99. Exit 4
    where it keeps less, 5 where that cannot be told or was not judged."""
    min_quality: float | None = field(default=None, metadata=above(0, 100))
    """Gate: the second must have at least this share of the first one's quality, as 0.99, by the
    text or the questions that both were judged on. Exit 4 where it has less or is broken, 5 where
    the interval cannot tell or it was not judged."""

    def __post_init__(self) -> None:
        if self.checkpoints is None and len(self.results) != 2:
            raise ValueError(f"results={self.results}: give two files, or checkpoints=[A,B]")
        if self.checkpoints is not None and len(self.checkpoints) != 2:
            raise ValueError(f"checkpoints={self.checkpoints}: give two of them")

    @property
    def is_gate(self) -> bool:
        """Whether the exit code judges the second."""
        thresholds = (self.min_ratio, self.min_recovery, self.min_quality)
        return any(threshold is not None for threshold in thresholds)


def changed_options(config: ReportConfig) -> list[str]:
    """The options of a report that differ from their defaults, without its files."""
    defaults, targets = ReportConfig(), asdict(config.targets)
    options = [option_text(f"mix.{name}", _short(share)) for name, share in config.mix.items()]
    for name, default in asdict(defaults.targets).items():
        if targets[name] != default:
            options.append(option_text(f"targets.{name}", _short(targets[name])))
    for name in PRICES:
        value = getattr(config.gpu, name)
        if value != getattr(defaults.gpu, name):
            options.append(option_text(f"gpu.{name}", _short(value)))
    if config.max_spread != defaults.max_spread:
        options.append(option_text("max_spread", _short(config.max_spread)))
    return options


def _short(value: Any) -> Any:
    """The value of an option that is a number anyway: 500.0 is written as 500."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def report_command(config: ReportConfig) -> str:
    """The command that writes this report."""
    files = [option_text("results", config.results), option_text("out", config.out)]
    return command_text("evaluate.report", *files, *changed_options(config))
