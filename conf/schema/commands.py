"""Every option of the three commands, typed. The text under a field is what `--help` prints."""

from dataclasses import asdict, dataclass, field
from typing import Any

from omegaconf import MISSING

from conf.launch.options import LauncherConfig
from conf.schema.auto import BITS, RECOVERY
from conf.schema.checks import check_repository
from conf.schema.load import EngineConfig, GpuConfig, ScenarioConfig
from conf.schema.model import WEIGHTS, ModelConfig
from conf.schema.ranges import (
    RANGE,
    SEED_MOST,
    TOKENS_MOST,
    above,
    choices,
    not_an_option,
    not_empty,
    within,
)
from conf.schema.recipe import GROUP_SIZE, HEADS, KV_CACHES, RecipeConfig, check_pattern
from conf.schema.report import MAX_SPREAD, SHARE, SPREAD, TargetsConfig
from conf.schema.text import QUESTION, CalibrationConfig, TextSource
from conf.schema.traffic import CapacityConfig, TrafficConfig

AUTO = "auto"
QUICK, LM_EVAL, QUESTIONS = "quick", "lm_eval", "questions"
ACCURACIES = ("none", QUICK, LM_EVAL, QUESTIONS, "sensitivity")


@dataclass
class AccuracyConfig:
    """How accuracy is measured, beside speed."""

    kind: str = field(default="none", metadata=choices(*ACCURACIES))
    """none, quick (divergence of checkpoints from the original, token by token), lm_eval (tasks of
    EleutherAI's harness, question by question), questions (well-known tasks from packages, without
    a hub), or sensitivity (which layers lose most in a recipe's format)."""
    text: TextSource = field(default_factory=TextSource)
    """The text; the part of it that calibration never uses."""
    tokens: int = field(default=16384, metadata=within(2, 10**9))
    """Tokens of text to evaluate."""
    window: int = field(default=512, metadata=within(2, TOKENS_MOST))
    """Tokens in one window of context."""
    likely: int = field(default=64, metadata=within(1, 2**20))
    """Number of most likely tokens that are compared at each position."""
    continuations: int = field(default=8, metadata=within(0, 10**6))
    """Prompts that are continued greedily."""
    continued_tokens: int = field(default=48, metadata=within(1, TOKENS_MOST))
    """Tokens of each continuation."""
    seed: int = field(default=0, metadata=within(0, SEED_MOST))
    """Seed of the choice of text, of questions, of few-shot examples and of the intervals."""
    min_recovery: float | None = field(default=None, metadata=above(0, 1))
    """Gate: exit 4 where the recovery, the share of the original's quality, is lower, as 0.99."""
    tasks: list[str] = field(default_factory=list, metadata=not_empty())
    """For lm_eval: names of the harness's tasks or groups, or YAML files that describe one. For
    questions: names of packaged tasks."""
    fewshot: int | None = field(default=None, metadata=within(0, 1000))
    """For lm_eval and questions: examples before each question; null is what each task says."""
    limit: int | None = field(default=None, metadata=within(1, 10**9))
    """For lm_eval: questions of each task, the first ones; null is all. For questions: a sample of
    so many, by the seed."""
    chat_template: bool = False
    """For lm_eval and questions: write questions as a chat, by the model's template."""
    run_code: bool = False
    """For questions: run the programs that answer humaneval and mbpp, in a sandbox."""

    def __post_init__(self) -> None:
        if self.kind in (LM_EVAL, QUESTIONS) and not self.tasks:
            raise ValueError(
                f"accuracy={self.kind}: name the tasks, as 'accuracy.tasks=[arc_easy]'"
            )
        if self.run_code and self.kind != QUESTIONS:
            raise ValueError("accuracy.run_code=true works only with accuracy=questions")

    def identity(self) -> dict[str, Any]:
        """What tells this measurement from others, for the key of its rows. Older rows have no
        run_code."""
        return {name: value for name, value in asdict(self).items() if value or name != "run_code"}


@dataclass
class QuantizeConfig:
    """Calibrates a model by a recipe and publishes the checkpoint."""

    model: ModelConfig = MISSING
    recipe: RecipeConfig = MISSING
    calibration: CalibrationConfig = MISSING
    gpu: GpuConfig = MISSING
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    output_dir: str = field(default="checkpoints", metadata=not_empty())
    """Root of all checkpoints; this one goes to output_dir/MODEL/RECIPE."""
    replace: bool = False
    """Replace the checkpoint if it exists already."""
    group_size: str | None = field(default=None, metadata={RANGE: GROUP_SIZE})
    """Columns that share a scale: a number, or auto for the largest of 128, 64, 32 and the
    recipe's own that fits and that the format has."""
    ignore: list[str] = field(default_factory=list, metadata=not_empty())
    """More modules or `re:` patterns to leave alone, beside the recipe's own."""
    kv_cache: str | None = field(default=None, metadata=choices(*KV_CACHES))
    """fp8: keep calibrated scales for an FP8 KV cache too."""
    lm_head: str | None = field(default=None, metadata=choices(*HEADS))
    """int8, int4 or fp8: quantize the output head too."""
    bits: float | None = field(default=None, metadata=BITS)
    """For recipe=auto: most bits a weight of the layers, scales included, as 4.5."""
    min_recovery: float | None = field(default=None, metadata=RECOVERY)
    """For recipe=auto: the least predicted share of the original's quality, as 0.99."""
    preflight: str = field(default="run", metadata=choices("run", "only"))
    """only: print the plan and stop, before any weight is read; with gpu=NAME for another GPU."""
    batch_size: int = field(default=8, metadata=within(1, 65536))
    """Calibration sequences in one forward pass."""
    gpus: int = field(default=1, metadata=within(1, 1024))
    """GPUs that calibrate together, each with a part of the text. torchrun sets it by itself."""
    shards: int | None = field(default=None, metadata=within(1, 1024))
    """Parts of the text whose sums are added in their order; null is one for each GPU. One GPU and
    shards=N gives the same bytes as N GPUs."""
    min_expert_tokens: int = field(default=1, metadata=within(0, 10**9))
    """For a mixture of experts. Gate: exit 4 where an expert that is quantized was chosen for fewer
    calibration tokens."""
    prompt: str = QUESTION
    """Prompt for the finished checkpoint; the answer is recorded for serve's canary."""
    push: str | None = field(default=None, metadata=not_empty())
    """Upload the verified checkpoint and its card to this repository of the model hub, ORG/NAME."""
    push_private: bool = True
    """Make a repository that is new a private one."""

    def __post_init__(self) -> None:
        check_repository("push", self.push)
        for pattern in self.ignore:
            check_pattern("ignore", pattern)
        self._check_limits()
        if self.shards is not None and self.gpus not in (1, self.shards):
            raise ValueError(
                f"shards={self.shards}: each of gpus={self.gpus} takes one shard; give the same "
                "number, or gpus=1"
            )
        if self.recipe.file and (self.lm_head or self.kv_cache or self.group_size or self.ignore):
            raise ValueError(
                "recipe.file: the file is run as it is; lm_head, kv_cache, group_size and ignore "
                "belong into the file itself"
            )
        if self.group_size not in (None, AUTO):
            self._check_group_size(str(self.group_size))

    def _check_limits(self) -> None:
        limits = {"bits": self.bits, "min_recovery": self.min_recovery}
        given = [f"{name}={limit:g}" for name, limit in limits.items() if limit is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one limit, not two")
        if given and self.recipe.auto is None:
            raise ValueError(
                f"{given[0]}: recipe={self.recipe.name} has one format for all layers; "
                "recipe=auto keeps a limit"
            )

    def _check_group_size(self, text: str) -> None:
        try:
            size = int(text)
        except ValueError:
            raise ValueError(f"group_size={text}: give a whole number, or auto") from None
        if size not in GROUP_SIZE:
            raise ValueError(f"group_size={text}: must be {GROUP_SIZE}")


@dataclass
class EvaluateConfig:
    """Measures checkpoints beside the original."""

    model: ModelConfig = MISSING
    scenario: dict[str, ScenarioConfig] = field(default_factory=dict)
    traffic: TrafficConfig = field(default_factory=TrafficConfig)
    accuracy: AccuracyConfig = MISSING
    engine: EngineConfig = MISSING
    gpu: GpuConfig = MISSING
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    checkpoints: list[str] | None = None
    """Published checkpoints, as fp8_dynamic, folders or hub ids to measure; null is every published
    checkpoint of the model."""
    checkpoint_root: str = field(default="checkpoints", metadata=not_empty())
    """Where published checkpoints are looked for."""
    weights: str = field(default="trained", metadata=choices(*WEIGHTS))
    """random: no checkpoint at all; measures `recipes` on the architecture with random weights."""
    recipes: list[str] | None = None
    """For weights=random or accuracy=sensitivity: the recipes to measure."""
    original: bool = True
    """For weights=random: measure the original, too."""
    results: str = field(default="results.jsonl", metadata=not_empty())
    """The file that runs are added to; runs that it already holds are not measured again."""
    results_before: list[str] = field(default_factory=list, metadata=not_an_option())
    """Set in a job of a sweep, whose `results` is its own shard: files whose runs are not measured
    again."""
    force: bool = False
    """Measure everything again; older runs stay in the file but no longer count."""
    repeats: int = field(default=5, metadata=within(1, 10000))
    """Timed runs of each scenario in one start of the engine, after one warm-up run."""
    starts: int = field(default=1, metadata=within(1, 100))
    """Starts of the engine for each checkpoint, in turns (A B A B). Two or more measure how much
    starts differ."""
    side_by_side: int = field(default=1, metadata=within(1, 16))
    """Engines that are loaded together, where they fit on the GPU, and measured one at a time.
    Saves most of the start time. Peak memory and start time are not measured. With
    accuracy=lm_eval and accuracy=questions: servers that are asked at the same time."""
    profile: bool = False
    """Also trace one prefill and some decode steps of each scenario: which operators, and gaps."""
    max_spread: float = field(default=MAX_SPREAD, metadata=SPREAD)
    """Relative deviation of the latency above which a cell is not ranked."""
    targets: TargetsConfig = field(default_factory=TargetsConfig)
    mix: dict[str, float] = field(default_factory=dict, metadata=SHARE)
    """Shares of the service's time by scenario, for the report at the end."""
    capacity: CapacityConfig = field(default_factory=CapacityConfig)

    def __post_init__(self) -> None:
        if not self.scenario and self.accuracy.kind == "none":
            raise ValueError(
                "scenario=none without accuracy=quick, questions, lm_eval or sensitivity: there is "
                "nothing to measure"
            )
        searches = [name for name, scenario in self.scenario.items() if scenario.search]
        if searches and not (self.targets.ttft_ms and self.targets.tpot_ms):
            raise ValueError(
                f"scenario={searches[0]}: give targets.ttft_ms and targets.tpot_ms, in milliseconds"
            )
        takes_traffic = [name for name, entry in self.scenario.items() if entry.from_traffic]
        if takes_traffic and self.side_by_side > 1:
            raise ValueError(
                f"side_by_side={self.side_by_side}: scenario={takes_traffic[0]} needs the whole "
                "GPU for its KV cache"
            )
        if self.starts > 1 and self.engine.url is not None:
            raise ValueError(
                f"starts={self.starts}: engine.url names a running server, which is not restarted"
            )
        if self.side_by_side > 1 and self.engine.url is not None:
            raise ValueError(
                f"side_by_side={self.side_by_side}: engine.url names a running server, which is "
                "one engine"
            )
        if self.weights == "random" and self.checkpoints is not None:
            raise ValueError("weights=random measures recipes=[...], not checkpoints=[...]")
        for_recipes = self.weights == "random" or self.accuracy.kind == "sensitivity"
        if not for_recipes and self.recipes is not None:
            raise ValueError(
                "recipes=[...] works only with weights=random or accuracy=sensitivity; give "
                "checkpoints=[FOLDER,...], or checkpoints=[] for the original alone"
            )
        if self.weights == "random" and self.accuracy.kind != "none":
            raise ValueError(f"weights=random has no accuracy: accuracy={self.accuracy.kind}")
        if self.weights != "random" and not self.original:
            raise ValueError(
                "original=false works only with weights=random: a checkpoint is measured beside "
                "its original"
            )
        if not self.original and "original" in (self.recipes or []):
            raise ValueError("recipes=[original,...] contradicts original=false")
        if self.profile and self.engine.kind == "vllm_server":
            raise ValueError("profile=true works only with engine=vllm or engine=transformers")
        if self.accuracy.kind in (LM_EVAL, QUESTIONS):
            self._check_server()
        elif self.accuracy.kind != "none" and self.engine.kind == "vllm_server":
            raise ValueError(
                f"accuracy={self.accuracy.kind}: works only with engine=vllm or engine=transformers"
            )

    def _check_server(self) -> None:
        """Raises where the harness could not start its own server for each checkpoint."""
        kind = self.accuracy.kind
        if self.engine.kind == "transformers" and kind == LM_EVAL:
            raise ValueError("accuracy=lm_eval needs vLLM's server: engine=vllm_server or vllm")
        if self.engine.url is not None:
            raise ValueError(
                f"accuracy={kind} starts a server for the original and for each checkpoint; "
                "engine.url names a running one"
            )


@dataclass
class ServeConfig:
    """Serves a checkpoint over the OpenAI-compatible API."""

    model: ModelConfig = MISSING
    engine: EngineConfig = MISSING
    gpu: GpuConfig = MISSING
    config: str | None = None
    """A file of options, as `python -m evaluate.tune` writes it; the command line comes first."""
    checkpoint: str | None = field(default=None, metadata=not_empty())
    """The folder or hub id to serve; null is the newest published checkpoint of the model."""
    recipe_name: str | None = field(default=None, metadata=not_empty())
    """Serve the model's published checkpoint of this recipe; original is the model itself."""
    results: str | None = field(default=None, metadata=not_empty())
    """A file of results: serve what its report recommends on this machine."""
    targets: TargetsConfig = field(default_factory=TargetsConfig)
    mix: dict[str, float] = field(default_factory=dict, metadata=SHARE)
    """For results: shares of the service's time by scenario, as mix.interactive=0.6."""
    checkpoint_root: str = field(default="checkpoints", metadata=not_empty())
    """Where published checkpoints are looked for."""
    host: str = field(default="127.0.0.1", metadata=not_empty())
    """Address to listen on; only this machine by default."""
    port: int = field(default=8000, metadata=within(1, 65535))
    """Port to listen on."""
    api_key_file: str | None = field(default=None, metadata=not_empty())
    """A file whose first line is the key that clients must send; or set VLLM_API_KEY."""
    canary: str = field(default="check", metadata=choices("check", "warn", "off"))
    """check: stop if the first answer differs from the one that quantize recorded; warn; or off."""
    restart: str = field(default="never", metadata=choices("never", "on-failure"))
    """on-failure: start again when the engine dies, after a pause that grows."""
    drain_s: float = field(default=30.0, metadata=within(0, 86400))
    """Seconds that running requests have to finish when the server is told to stop."""
    prompt: str | None = None
    """Answer this one prompt and stop, instead of serving."""
    dry_run: bool = False
    """Print the command and stop."""

    def __post_init__(self) -> None:
        selectors = {
            "checkpoint": self.checkpoint,
            "recipe": self.recipe_name,
            "results": self.results,
        }
        given = [name for name, value in selectors.items() if value]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: only one of them may say what to serve")
        if not self.results and (self.mix or self.targets != TargetsConfig()):
            raise ValueError("targets and mix need results=FILE, from which they choose")
