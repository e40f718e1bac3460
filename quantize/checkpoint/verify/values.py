"""Checks the values of every tensor that is not a quantized weight, and finds copied tensors."""

import copy
import hashlib
import math
from typing import Any

import torch

from conf.formats.base.tensors import Role
from quantize.checkpoint.tensors import CheckpointTensors, breaks_2_of_4
from quantize.checkpoint.verify.codes import LARGEST_WEIGHT, positive_faults, size_faults
from quantize.checkpoint.verify.expected import Expectation

LARGEST_VECTOR = 1e5  # norms and biases
SMALLEST_WEIGHT = 1e-8  # limit for the largest of a matrix; trained ones hold at least 0.001
SMALLEST_ACTIVATION, LARGEST_ACTIVATION = 1e-12, 1e5
# Only tensors with this many different values are compared; scalars and ones repeat.
DISTINCT = 16
SAMPLE = 1 << 12
MATRICES = (Role.WEIGHT, Role.EMBEDDING)
COMPARED = (Role.WEIGHT, Role.CODES, Role.SCALE, Role.NORM, Role.BIAS, Role.CODEBOOK)


def tensor_faults(name: str, tensor: torch.Tensor, role: Role) -> list[str]:
    """Faults of one tensor by itself."""
    if role is Role.ACTIVATION_SCALE:
        return positive_faults(name, tensor.double(), SMALLEST_ACTIVATION, LARGEST_ACTIVATION)
    if role is Role.GLOBAL_SCALE:
        return positive_faults(name, tensor.double(), 0.0, math.inf)
    if not tensor.is_floating_point() or role in (Role.CODES, Role.SCALE):
        return []
    numbers = tensor.float()
    if not torch.isfinite(numbers).all():
        return [f"{name} holds NaN or infinite values"]
    largest = float(numbers.abs().max())
    if role in MATRICES:
        return _matrix_faults(name, numbers, largest, role)
    if largest > LARGEST_VECTOR:
        return [f"{name} holds {largest:.3g}, at most {LARGEST_VECTOR:g} is usual"]
    return []


def _matrix_faults(name: str, matrix: torch.Tensor, largest: float, role: Role) -> list[str]:
    if largest > LARGEST_WEIGHT:
        return [f"{name} holds {largest:.3g}, at most {LARGEST_WEIGHT:g} is usual"]
    if largest < SMALLEST_WEIGHT:
        return [f"{name} holds {largest:.3g} at most, which is nearly zero"]
    if matrix.min() == matrix.max():
        return [f"{name} holds one value only"]
    if matrix.shape[-1] > 1 and bool((matrix == matrix[..., :1]).all()):
        return [f"{name} holds one value in each row"]
    if matrix.shape[0] > 1 and bool((matrix == matrix[0]).all()):
        return [f"{name} holds the same row throughout"]
    if role is Role.EMBEDDING:
        return []
    row_sizes = matrix.abs().amax(dim=1)
    return size_faults(name, row_sizes, row_sizes, row_sizes > 0)


def typical_size(tensor: torch.Tensor) -> float:
    """Median over rows of the largest weight; 0 if there is none."""
    row_sizes = tensor.float().abs().amax(dim=1)
    nonzero = row_sizes[row_sizes > 0]
    return float(nonzero.median()) if len(nonzero) and torch.isfinite(nonzero).all() else 0.0


def mask_faults(name: str, tensor: torch.Tensor) -> list[str]:
    """Violations of 2:4 in a matrix that is not quantized."""
    broken = breaks_2_of_4(tensor) if tensor.shape[-1] % 4 == 0 else 0
    return [f"{name}: {broken} groups of four have fewer than two zeros"] if broken else []


def norm_faults(model: Any, name: str, tensor: torch.Tensor) -> list[str]:
    """A norm without positive weights: zeros block every value, negative weights flip every sign.
    Some norms add one to their weight, so that both are sound; a run with zeros shows which."""
    if bool((tensor > 0).any()) or not _is_zero_for_zero_weights(
        model.get_submodule(name.rpartition(".")[0])
    ):
        return []
    content = "negative values" if tensor.any() else "zeros"
    return [f"{name} holds {content} only"]


def _is_zero_for_zero_weights(norm: Any) -> bool:
    """Whether a norm gives zeros if all of its parameters are zero."""
    try:
        probe = copy.copy(norm)
        probe._parameters = {
            parameter_name: torch.nn.Parameter(torch.zeros(value.shape))
            if value is not None
            else None
            for parameter_name, value in norm._parameters.items()
        }
        width = norm.weight.shape[-1]
        return not bool(probe.forward(torch.linspace(-1, 1, width)[None]).any())
    except Exception:  # a norm that takes more than its input
        return False


class Copies:
    """Finds tensors that are equal bit by bit: one was written over the other."""

    def __init__(self) -> None:
        self._seen: dict[bytes, str] = {}

    def faults(self, name: str, tensor: torch.Tensor, role: Role) -> list[str]:
        if role not in COMPARED:
            return []
        flat = tensor.contiguous().flatten()
        if len(torch.unique(flat[:SAMPLE].float())) < DISTINCT:
            return []
        content = flat.view(torch.uint8).numpy()
        key = hashlib.blake2b(content.tobytes(), digest_size=16).digest()
        other = self._seen.setdefault(key, name)
        return [f"{name} holds the same values as {other}"] if other != name else []


def tied_faults(tensors: CheckpointTensors, expectation: Expectation) -> list[str]:
    """The fault of a head that is tied to the embedding but stored with other values."""
    head, embedding = expectation.tied, expectation.embedding
    if head is None or embedding is None or head not in tensors or embedding not in tensors:
        return []
    if torch.equal(tensors[head].float(), tensors[embedding].float()):
        return []
    return [f"{head} differs from {embedding}, to which tie_word_embeddings ties it"]
