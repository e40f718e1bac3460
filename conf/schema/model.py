"""The options of a model: where it comes from, and what tells it from others."""

from dataclasses import dataclass, field

from omegaconf import MISSING

from conf.architecture import Architecture
from conf.schema.checks import check_plain_name
from conf.schema.package import PackageSource
from conf.schema.ranges import SEED_MOST, TOKENS_MOST, above, choices, within

WEIGHTS = ("trained", "random")


@dataclass
class TrainingSource:
    """A small model trained here, on first use, on CPython's documentation."""

    steps: int = field(default=MISSING, metadata=within(1, 10**7))
    """Optimizer steps."""
    batch: int = field(default=MISSING, metadata=within(1, 65536))
    """Sequences in a step."""
    length: int = field(default=MISSING, metadata=within(8, TOKENS_MOST))
    """Tokens in a sequence."""
    learning_rate: float = field(default=MISSING, metadata=above(0, 1))
    """Highest learning rate of the schedule."""


@dataclass
class ModelConfig:
    """The model to quantize, measure or serve."""

    name: str | None = None
    """Its name in results and checkpoints; by default from the folder or hub id."""
    id: str | None = None
    """Hub id, as org/name."""
    revision: str = "main"
    """Branch, tag or commit on the hub."""
    path: str | None = None
    """A local folder to use instead of the hub."""
    weights: str = field(default="trained", metadata=choices(*WEIGHTS))
    """trained, or random: the architecture with seeded random weights, no hub needed."""
    seed: int = field(default=0, metadata=within(0, SEED_MOST))
    """Seed of random or locally trained weights."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off by default."""
    architecture: Architecture | None = None
    """Dimensions; read from config.json for a folder or an unlisted hub id."""
    package: PackageSource | None = None
    """Set for a model that comes from the package index."""
    training: TrainingSource | None = None
    """Set for a model that is trained here."""

    def __post_init__(self) -> None:
        if self.weights == "random" and self.architecture is None:
            raise ValueError(
                "model.weights=random needs a model whose architecture is listed: choose one "
                "with model=NAME"
            )
        if not self.name:
            self.name = self._name_from_source()
        check_plain_name("model.name", self.name)

    def _name_from_source(self) -> str:
        source = self.path or self.id
        if source is None:
            raise ValueError("model: give model=NAME, model.path=FOLDER or model.id=ORG/NAME")
        return source.rstrip("/").rsplit("/", 1)[-1].lower()
