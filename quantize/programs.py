"""The programs of quantize that other commands start, each in a process of its own.

The processes import torch and llm-compressor; the command that starts them must not. Requests and
answers are therefore declared here, where nothing heavy is imported.
"""

from dataclasses import dataclass

from conf.process.messages import Failure
from conf.process.program import Program
from conf.schema.commands import AccuracyConfig
from conf.schema.model import ModelConfig


@dataclass(frozen=True)
class Fetched:
    """The folder that holds the model."""

    folder: str


FETCH = Program("quantize.models.fetch", ModelConfig, (Fetched,))


@dataclass(frozen=True)
class VerifyRequest:
    """Checkpoints to verify."""

    folders: list[str]


@dataclass(frozen=True)
class Verified:
    """The faults of a checkpoint; none for a sound one."""

    folder: str
    faults: list[str]
    holds_nan: bool
    """Whether the first fault is a NaN or infinite value. That means a failed quantization; other
    faults mean damaged files."""


VERIFY = Program("quantize.checkpoint.verify_process", VerifyRequest, (Verified,))


@dataclass(frozen=True)
class DescribeRequest:
    """Recipes to describe on a model, without any weights."""

    model: ModelConfig
    recipes: list[str]


@dataclass(frozen=True)
class Described:
    """One recipe's checkpoint is described in its folder, or failed to be."""

    recipe: str
    failure: Failure | None = None


DESCRIBE = Program("quantize.describe_process", DescribeRequest, (Described,))


@dataclass(frozen=True)
class SensitivityRequest:
    """A recipe whose format is tried on each block of the model alone."""

    model: ModelConfig
    recipe: str
    accuracy: AccuracyConfig


@dataclass(frozen=True)
class Block:
    """The effect of rounding one block alone."""

    block: str
    modules: list[str]
    divergence: float
    """Divergence of the next token from the original's, in nats."""
    bytes: float
    """Extra bytes if the block stays unquantized."""


@dataclass(frozen=True)
class BlockMeasured:
    """The measurement of one block."""

    block: Block
    blocks: int
    """Number of blocks in the model."""


SENSITIVITY = Program("quantize.sensitivity_process", SensitivityRequest, (BlockMeasured,))
