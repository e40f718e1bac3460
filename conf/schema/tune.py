"""Options of the search for the engine settings of one checkpoint under one scenario."""

import re
from dataclasses import dataclass, field

from omegaconf import MISSING

from conf.schema.commands import QUICK, AccuracyConfig
from conf.schema.load import EngineConfig, GpuConfig, ScenarioConfig
from conf.schema.model import WEIGHTS, ModelConfig
from conf.schema.ranges import SEED_MOST, choices, not_empty, within
from conf.schema.report import TargetsConfig
from conf.schema.traffic import TrafficConfig

BUDGET = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)")
SECONDS = {"s": 1, "m": 60, "h": 3600}
LONGEST_S = 30 * 24 * 3600


def budget_seconds(text: str) -> float:
    """The seconds of a time with its unit, as 20m. Raises ValueError for anything else."""
    match = BUDGET.fullmatch(text)
    if match is None:
        raise ValueError(f"budget={text}: write a time with its unit, as 90s, 20m or 1h")
    seconds = float(match[1]) * SECONDS[match[2]]
    if not 0 < seconds <= LONGEST_S:
        raise ValueError(f"budget={text}: must be more than 0s and at most {LONGEST_S // 3600}h")
    return seconds


@dataclass
class TuneConfig:
    """Searches the engine settings that are fastest for one checkpoint under one scenario. Confirms
    them with fresh starts beside the default settings, and writes a file for `python -m serve
    config=FILE`."""

    model: ModelConfig = MISSING
    scenario: dict[str, ScenarioConfig] = field(default_factory=dict)
    traffic: TrafficConfig = field(default_factory=TrafficConfig)
    accuracy: AccuracyConfig = MISSING
    engine: EngineConfig = MISSING
    gpu: GpuConfig = MISSING
    checkpoint: str | None = field(default=None, metadata=not_empty())
    """The folder or hub id to tune; null is the newest published checkpoint of the model."""
    recipe_name: str | None = field(default=None, metadata=not_empty())
    """Tune the model's published checkpoint of this recipe; original is the model itself. With
    weights=random, the recipe to make up; null is the original."""
    checkpoint_root: str = field(default="checkpoints", metadata=not_empty())
    """Where published checkpoints are looked for."""
    weights: str = field(default="trained", metadata=choices(*WEIGHTS))
    """random: no checkpoint; the recipe on the architecture with random weights."""
    budget: str = "20m"
    """Wall time for search and confirmation, as 90s, 20m or 1h. A running trial is finished."""
    settings: list[str] | None = field(default=None, metadata=not_empty())
    """The settings to search, as [max_num_seqs,async_scheduling]; null is all that apply, do not
    change answers and do not limit the context. accuracy=quick adds those that change answers, and
    judges them."""
    trials: int | None = field(default=None, metadata=within(1, 10000))
    """Most trials, the default settings included; null is as many as the budget allows."""
    repeats: int = field(default=5, metadata=within(2, 1000))
    """Timed runs of a trial. A trial that is significantly slower than the best stops earlier."""
    confirm_starts: int = field(default=2, metadata=within(2, 20))
    """Fresh starts of the default and of the best settings, in turns, that measure the gain."""
    side_by_side: int = field(default=1, metadata=within(1, 16))
    """Engines that are loaded together, where they fit on the GPU, and measured one at a time."""
    seed: int = field(default=0, metadata=within(0, SEED_MOST))
    """Seed of the search."""
    results: str = field(default="results.jsonl", metadata=not_empty())
    """The file that runs are added to; finished trials in it are not measured again."""
    force: bool = False
    """Measure everything again; older runs stay in the file but no longer count."""
    out: str = field(default="serve.yaml", metadata=not_empty())
    """The file with the settings found, for `python -m serve config=FILE`."""
    targets: TargetsConfig = field(default_factory=TargetsConfig)
    """For scenario=traffic: settings that miss ttft_ms or tpot_ms, each as 99th percentile, lose to
    settings that meet them."""

    def __post_init__(self) -> None:
        budget_seconds(self.budget)
        self._check_goal()
        self._check_checkpoint()
        if self.settings == []:
            raise ValueError("settings=[]: name at least one setting, or leave it out for all")
        if self.engine.kind == "transformers":
            raise ValueError("engine=transformers: only vLLM has settings to tune")
        if self.engine.url is not None:
            raise ValueError("engine.url: a running server cannot be started with other settings")
        if self.accuracy.kind not in ("none", QUICK):
            raise ValueError(f"accuracy={self.accuracy.kind}: works only with none or quick here")

    def _check_goal(self) -> None:
        """A search needs one number to improve: that of one workload."""
        if len(self.scenario) != 1:
            names = ", ".join(self.scenario) or "none"
            raise ValueError(
                f"scenario: there is no single goal, its workloads are {names}; choose a scenario "
                "with one workload, or write one"
            )
        (name, scenario) = next(iter(self.scenario.items()))
        if scenario.search:
            raise ValueError(
                f"scenario={name}: is a search of its own and has no single time; tune "
                "scenario=traffic at one rate instead"
            )
        if scenario.from_traffic and self.side_by_side > 1:
            raise ValueError(
                f"side_by_side={self.side_by_side}: scenario={name} needs the whole GPU for its "
                "KV cache"
            )

    def _check_checkpoint(self) -> None:
        if self.checkpoint and self.recipe_name:
            raise ValueError("checkpoint and recipe: only one of them may say what to tune")
        if self.weights == "random" and self.checkpoint:
            raise ValueError("weights=random tunes recipe=NAME, not checkpoint=DIR")
        if self.weights == "random" and self.accuracy.kind != "none":
            raise ValueError(f"weights=random has no accuracy: accuracy={self.accuracy.kind}")

    @property
    def scenario_name(self) -> str:
        return next(iter(self.scenario))

    @property
    def budget_s(self) -> float:
        return budget_seconds(self.budget)
