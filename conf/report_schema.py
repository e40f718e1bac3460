"""What a team asks of results: the files to read, its targets, its mix of loads."""

from dataclasses import asdict, dataclass, field

MAX_SPREAD = 0.1


@dataclass
class TargetsConfig:
    """What a checkpoint must keep to be recommended; null asks for nothing."""

    ttft_ms: float | None = None
    """Longest time to the first token; of a batch its last request's, of a server's load the
    99th percentile."""
    tpot_ms: float | None = None
    """Longest time for each token after the first."""
    min_recovery: float | None = None
    """Least share of the original's quality, as 0.99; null refuses what was judged a loss."""
    max_memory_gib: float | None = None
    """Most memory for weights, graphs and the load's own KV cache."""
    allow_unjudged: bool = False
    """Recommend a checkpoint even if its accuracy was not judged and that of others was."""

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms", "min_recovery", "max_memory_gib"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"targets.{name}={value}: must be more than 0")
        if self.min_recovery is not None and self.min_recovery > 1:
            raise ValueError(f"targets.min_recovery={self.min_recovery}: must be within 0 and 1")


@dataclass
class ReportConfig:
    """Writes report.md and report.html from results: what to serve, and how sure that is."""

    results: list[str] = field(default_factory=lambda: ["results.jsonl"])
    """Files of results."""
    out: str = "report"
    """Folder for report.md, report.html and the plots."""
    targets: TargetsConfig = field(default_factory=TargetsConfig)
    mix: dict[str, float] = field(default_factory=dict)
    """Shares of the service's time by scenario, as mix.interactive=0.6; empty is every standard
    scenario alike."""
    max_spread: float = MAX_SPREAD
    """Relative deviation of the latency above which a cell is not ranked."""

    def __post_init__(self) -> None:
        if not self.results:
            raise ValueError("results=[]: name a file of results")
        check_mix(self.mix)


@dataclass
class CompareConfig:
    """Says whether one set of runs is faster than another, or cannot be told from it."""

    results: list[str] = field(default_factory=lambda: ["results.jsonl"])
    """Two files to compare, or one or more that hold two checkpoints."""
    checkpoints: list[str] | None = None
    """Two checkpoints to compare within the results; null compares two files."""
    value: str = "latency_s"
    """What is compared; smaller has to be better."""
    max_spread: float = MAX_SPREAD
    """Relative deviation of the latency above which a cell is not judged."""

    def __post_init__(self) -> None:
        if self.checkpoints is None and len(self.results) != 2:
            raise ValueError(f"results={self.results}: give two files, or checkpoints=[A,B]")
        if self.checkpoints is not None and len(self.checkpoints) != 2:
            raise ValueError(f"checkpoints={self.checkpoints}: give two of them")


def asked(config: ReportConfig) -> list[str]:
    """What a report was asked beside its files, as options."""
    usual, targets = ReportConfig(), asdict(config.targets)
    words = [f"mix.{name}={share:g}" for name, share in config.mix.items()]
    words += [f"targets.{name}={value:g}" for name, value in targets.items() if value is not None]
    if config.max_spread != usual.max_spread:
        words.append(f"max_spread={config.max_spread:g}")
    return words


def check_mix(mix: dict[str, float]) -> None:
    for name, share in mix.items():
        if not 0 < share < float("inf"):
            raise ValueError(f"mix.{name}={share}: must be more than 0")
