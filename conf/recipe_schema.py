"""What a recipe file may say, typed. The text under a field is its documentation."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING

from conf.checks import one_of, plain_name

# Steps that change weights without rounding them, and steps that round.
TRANSFORMS = ("smoothquant", "awq", "sparsegpt")
ROUNDERS = ("rounding", "gptq", "autoround")
STEPS = (*TRANSFORMS, *ROUNDERS)
NUMBER_TYPES = ("int", "float")
STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block", "token")
GROUPED = ("group", "tensor_group")


@dataclass
class NumberFormat:
    """How one kind of tensor is stored: weights or activations."""

    type: str = "int"
    """int or float."""
    bits: int = 8
    """Bits for a value."""
    strategy: str = "channel"
    """What shares a scale: tensor, channel, group, tensor_group, block or token."""
    group_size: int | None = None
    """Columns that share a scale, for the group strategies."""
    block_structure: list[int] | None = None
    """Rows and columns that share a scale, for strategy block."""
    symmetric: bool = True
    """Without a zero point."""
    dynamic: bool = False
    """Scales computed as the tokens come (activations)."""
    scale_type: str | None = None
    """Number type of the scales: fp8, or null for the model's own."""

    def __post_init__(self) -> None:
        one_of("type", self.type, NUMBER_TYPES)
        one_of("strategy", self.strategy, STRATEGIES)
        if self.scale_type is not None:
            one_of("scale_type", self.scale_type, ("fp8",))
        if (self.strategy in GROUPED) != (self.group_size is not None):
            raise ValueError(f"strategy={self.strategy} with group_size={self.group_size}")
        if (self.strategy == "block") != (self.block_structure is not None):
            raise ValueError(f"strategy={self.strategy} with block={self.block_structure}")


HEAD_FORMATS = {
    "int8": NumberFormat(type="int", bits=8, strategy="channel"),
    "int4": NumberFormat(type="int", bits=4, strategy="group", group_size=128),
    "fp8": NumberFormat(type="float", bits=8, strategy="channel"),
}


@dataclass
class SmoothQuantStep:
    """Moves outliers from activations into weights, where they cost less."""

    smoothing_strength: float = 0.8
    """0 leaves activations as they are, 1 makes them flat."""


@dataclass
class AwqStep:
    """Scales the channels that activations say matter, so that rounding hurts them less."""

    grid: int = 20
    """Scales tried for each group of layers."""
    duo_scaling: bool = True
    """Let weights have a say beside activations."""


@dataclass
class SparseGptStep:
    """Prunes to 2:4, two zeros in every four weights of a row, and lets the rest make up for it."""

    block_size: int = 128
    """Columns that are updated together."""
    dampening: float = 0.01
    """Share of the mean diagonal that is added to the Hessian."""


@dataclass
class GptqStep:
    """Rounds a weight matrix column by column and lets the rest make up for the error."""

    block_size: int = 128
    """Columns that are updated together."""
    dampening: float = 0.01
    """Share of the mean diagonal that is added to the Hessian."""
    act_order: bool = True
    """Round the columns that matter most first; the order is not stored, so it costs no speed."""
    max_fallback: float = 0.05
    """Share of modules that may fall back to plain rounding before the run fails."""


@dataclass
class AutoRoundStep:
    """Learns how to round, layer by layer, by signed gradient descent."""

    iterations: int = 200
    """Steps of descent for each layer."""


@dataclass
class RecipeConfig:
    """What is done to a model, step by step, and how the result is stored."""

    name: str = MISSING
    """What checkpoints and results call it; the file's name if not given."""
    file: str | None = None
    """A recipe.yaml of llm-compressor, to be run as it is instead of the steps below."""
    description: str = ""
    """One line: what it is."""
    when: str = ""
    """When to use it."""
    hardware: str = ""
    """What runs it."""
    steps: list[str] = MISSING
    """The steps in their order: smoothquant, awq, sparsegpt; then rounding, gptq or autoround."""
    weights: NumberFormat | None = field(default_factory=NumberFormat)
    """How weights are stored; null leaves them as they are (pruning alone)."""
    activations: NumberFormat | None = None
    """How activations are rounded before a product; null leaves them at 16 bit."""
    lm_head: str | None = None
    """Store the output head too: int8, int4 or fp8; null leaves it as it is."""
    kv_cache: str | None = None
    """fp8: keep calibrated scales for an FP8 KV cache in the checkpoint."""
    targets: list[str] = field(default_factory=lambda: ["Linear"])
    """Module classes or `re:` patterns to quantize."""
    ignore: list[str] = field(default_factory=lambda: ["lm_head"])
    """Modules or `re:` patterns to leave alone."""
    smoothquant: SmoothQuantStep = field(default_factory=SmoothQuantStep)
    """Options of that step."""
    awq: AwqStep = field(default_factory=AwqStep)
    """Options of that step."""
    sparsegpt: SparseGptStep = field(default_factory=SparseGptStep)
    """Options of that step."""
    gptq: GptqStep = field(default_factory=GptqStep)
    """Options of that step."""
    autoround: AutoRoundStep = field(default_factory=AutoRoundStep)
    """Options of that step."""

    def __post_init__(self) -> None:
        if self.file:
            path = Path(self.file).expanduser().absolute()
            self.name = path.parent.name if path.stem == "recipe" else path.stem
            plain_name("recipe.name", self.name)
            return  # what the file says is checked when it is read
        plain_name("recipe.name", self.name)
        for step in self.steps:
            one_of("recipe.steps", step, STEPS)
        if len(set(self.steps)) != len(self.steps):
            raise ValueError(f"recipe.steps={self.steps}: a step stands there twice")
        rounding = [step for step in self.steps if step in ROUNDERS]
        if self.weights is None and (rounding or not self.is_sparse):
            raise ValueError(f"recipe.steps={self.steps}: weights=null goes with sparsegpt alone")
        if self.weights is not None and (len(rounding) != 1 or rounding != self.steps[-1:]):
            raise ValueError(
                f"recipe.steps={self.steps}: the last step has to round, and no other "
                f"({', '.join(ROUNDERS)})"
            )
        if self.lm_head is not None:
            one_of("lm_head", self.lm_head, tuple(HEAD_FORMATS))
        if self.kv_cache is not None:
            one_of("kv_cache", self.kv_cache, ("fp8",))
        if self.weights is None and (self.lm_head or self.kv_cache):
            raise ValueError("recipe: lm_head and kv_cache need a recipe that quantizes weights")
        if self.is_sparse and self.weights is not None and not self.weights.symmetric:
            raise ValueError("recipe: 2:4 zeros survive only symmetric rounding; symmetric=true")
        if self.is_sparse and self.weights is not None and self.weights.type == "float":
            raise ValueError("recipe: sparsegpt goes with int weights, or with none")

    @property
    def is_sparse(self) -> bool:
        """Whether every pruned matrix has two zeros in each four weights of a row."""
        return prunes(self.steps)

    @property
    def rounds(self) -> bool:
        """Whether weights end up in another number format, and are not pruned alone."""
        return any(step in ROUNDERS for step in self.steps)

    @property
    def needs_text(self) -> bool:
        static = self.activations is not None and not self.activations.dynamic
        return static or self.kv_cache is not None or self.steps != ["rounding"]


def prunes(steps: list[str]) -> bool:
    """Whether these steps set two of every four weights to zero."""
    return "sparsegpt" in steps
