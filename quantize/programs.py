"""What quantize does for other commands, each in a process of its own.

The processes import torch and llm-compressor; who starts them must not. So the requests and the
answers are declared here, where nothing heavy is imported.
"""

from dataclasses import dataclass

from conf.process.messages import Failure
from conf.process.program import Program
from conf.schema.commands import AccuracyConfig, ModelConfig


@dataclass(frozen=True)
class Fetched:
    """The folder that holds the model."""

    folder: str


FETCH = Program("quantize.models.fetch", ModelConfig, (Fetched,))


@dataclass(frozen=True)
class VerifyRequest:
    """A checkpoint to verify."""

    folder: str


@dataclass(frozen=True)
class Verified:
    """What is wrong with a checkpoint; nothing for one that is what it says."""

    faults: list[str]
    holds_nan: bool
    """Whether the first fault is a NaN or infinite value: a quantization that failed, where other
    faults are of the files."""


VERIFY = Program("quantize.checkpoint.verify", VerifyRequest, (Verified,))


@dataclass(frozen=True)
class DescribeRequest:
    """Recipes to describe on a model, without any weights."""

    model: ModelConfig
    recipes: list[str]


@dataclass(frozen=True)
class Described:
    """One recipe's checkpoint is described in its folder, or cannot be."""

    recipe: str
    failure: Failure | None = None


DESCRIBE = Program("quantize.describe", DescribeRequest, (Described,))


@dataclass(frozen=True)
class SensitivityRequest:
    """A recipe whose format is tried on one block of the model after the other."""

    model: ModelConfig
    recipe: str
    accuracy: AccuracyConfig


@dataclass(frozen=True)
class Block:
    """What rounding one block alone does."""

    block: str
    modules: list[str]
    divergence: float
    """Of its answers from the original's, in nats."""
    bytes: float
    """What leaving it alone costs."""


@dataclass(frozen=True)
class BlockMeasured:
    """One of the model's blocks is measured."""

    block: Block
    blocks: int
    """All that there are."""


SENSITIVITY = Program("quantize.sensitivity", SensitivityRequest, (BlockMeasured,))
