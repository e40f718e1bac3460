"""What a product of activations and a stored weight must offer to be planned and run."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

Options = tuple[tuple[str, int], ...]
"""Launch options or an algorithm's number, as sorted pairs: hashable, and plain in a file."""


class Unusable(Exception):  # noqa: N818 (it is a reason, not a fault)
    """A product cannot run a layer; the message says why."""


@dataclass(frozen=True)
class Weight:
    """A linear layer as the checkpoint stores it: N rows of outputs, K columns of inputs."""

    codes: torch.Tensor
    """INT8 or FP8 values [N, K]; or for packed integers 32-bit words [N, K * bits / 32], the first
    column in the lowest bits, values offset by half of their range."""
    scales: torch.Tensor
    """[N, 1] for a scale for each channel, else [N, K / group_size]."""
    bits: int
    columns: int
    zeros: torch.Tensor | None = None
    """Zero points [N, K / group_size], as integers, offset as the codes are: a weight is its code
    minus this, times its scale. None for symmetric weights."""
    group_size: int | None = None
    """Columns that share a scale; None for a scale for each channel."""
    sparse: bool = False
    """At most two of four neighbours in a row are not zero."""

    @property
    def rows(self) -> int:
        return int(self.codes.shape[0])


@dataclass(slots=True)  # not frozen: it is made in each call, and that would take twice as long
class Inputs:
    """Activations of a layer. At least one of `plain` and `rounded` is used by a product."""

    plain: torch.Tensor
    """[tokens, K], 16 bit."""
    rounded: torch.Tensor | None = None
    """[tokens, K] in INT8 or FP8."""
    scales: torch.Tensor | None = None
    """[tokens, 1] in float32: what `rounded` was divided by. None leaves them to the caller, who
    then multiplies the result by them."""


class Product(ABC):
    """One way to multiply. Stateless: what it needs of a layer are the tensors of `prepare`."""

    name: ClassVar[str]
    fewest: ClassVar[int] = 1
    """Fewest tokens that it takes."""
    most: ClassVar[int | None] = None
    """Most tokens that it takes; None for any number."""
    reads_rounded: ClassVar[bool] = False
    """Multiplies `Inputs.rounded`; else `Inputs.plain`."""
    scales_after: ClassVar[bool] = False
    """Takes a pass of its own to apply the scales of rounded activations, so the caller should."""
    tolerance: ClassVar[float] = 0.01
    """Norm of the error of a row of results over the norm of the row that a proof allows; bf16
    rounds to 0.004 at most."""
    compiles: ClassVar[bool] = False
    """Each of its options is a kernel that is compiled when it first runs, which takes a second."""
    traceable: ClassVar[bool] = False
    """`direct` can be traced into a graph."""

    @abstractmethod
    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        """Candidates to measure, the best guess first."""

    @abstractmethod
    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        """The tensors that it multiplies, made once at load. Raises Unusable with the reason."""

    @abstractmethod
    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        """[tokens, N] in the type of `inputs.plain`, with all scales applied."""

    def direct(self, inputs: Inputs, tensors: list[torch.Tensor], options: Options) -> torch.Tensor:
        """The numbers of `multiply`, for a compiled graph: by functional ops of PyTorch and vLLM
        that Inductor calls without Python of ours. The number of tokens may be a symbol."""
        return self.multiply(inputs, tensors, options)
