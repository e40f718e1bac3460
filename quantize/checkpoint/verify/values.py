"""The values of every tensor that is not a quantized weight, and tensors that are copies."""

import copy
import hashlib
import math
from typing import Any

import torch

from conf.formats.tensors import Role
from quantize.checkpoint.tensors import CheckpointTensors, breaks_2_of_4
from quantize.checkpoint.verify.codes import LARGEST_WEIGHT, positive_faults, size_faults
from quantize.checkpoint.verify.expected import Expectation

LARGEST_VECTOR = 1e5  # norms and biases
SMALLEST_WEIGHT = 1e-8  # the largest of a matrix; trained ones hold at least a thousandth
SMALLEST_ACTIVATION, LARGEST_ACTIVATION = 1e-12, 1e5
# Copies are looked for among tensors with so many different values; scalars and ones repeat.
DISTINCT = 16
SAMPLE = 1 << 12
MATRICES = (Role.WEIGHT, Role.EMBEDDING)
COMPARED = (Role.WEIGHT, Role.CODES, Role.SCALE, Role.NORM, Role.BIAS)


def tensor_faults(name: str, tensor: torch.Tensor, role: Role) -> list[str]:
    """What is wrong with one tensor, whatever else the checkpoint holds."""
    if role is Role.ACTIVATION_SCALE:
        return positive_faults(name, tensor.double(), SMALLEST_ACTIVATION, LARGEST_ACTIVATION)
    if role is Role.GLOBAL_SCALE:
        return positive_faults(name, tensor.double(), 0.0, math.inf)
    if not tensor.is_floating_point() or role in (Role.CODES, Role.SCALE):
        return []
    wide = tensor.float()
    if not torch.isfinite(wide).all():
        return [f"{name} holds NaN or infinite values"]
    most = float(wide.abs().max())
    if role in MATRICES:
        return _matrix_faults(name, wide, most, role)
    if most > LARGEST_VECTOR:
        return [f"{name} holds {most:.3g}, at most {LARGEST_VECTOR:g} is usual"]
    return []


def _matrix_faults(name: str, wide: torch.Tensor, most: float, role: Role) -> list[str]:
    if most > LARGEST_WEIGHT:
        return [f"{name} holds {most:.3g}, at most {LARGEST_WEIGHT:g} is usual"]
    if most < SMALLEST_WEIGHT:
        return [f"{name} holds {most:.3g} at most, which is next to zero"]
    if wide.min() == wide.max():
        return [f"{name} holds one value only"]
    if wide.shape[-1] > 1 and bool((wide == wide[..., :1]).all()):
        return [f"{name} holds one value in each row"]
    if wide.shape[0] > 1 and bool((wide == wide[0]).all()):
        return [f"{name} holds the same row throughout"]
    if role is Role.EMBEDDING:
        return []
    rows = wide.abs().amax(dim=1)
    return size_faults(name, rows, rows > 0)


def usual_size(tensor: torch.Tensor) -> float:
    """Median over rows of the largest weight; 0 where there is none."""
    rows = tensor.float().abs().amax(dim=1)
    alive = rows[rows > 0]
    return float(alive.median()) if len(alive) and torch.isfinite(alive).all() else 0.0


def mask_faults(name: str, tensor: torch.Tensor) -> list[str]:
    """2:4 in a matrix that is not quantized."""
    broken = breaks_2_of_4(tensor) if tensor.shape[-1] % 4 == 0 else 0
    return [f"{name}: {broken} groups of four have fewer than two zeros"] if broken else []


def norm_faults(model: Any, name: str, tensor: torch.Tensor) -> list[str]:
    """A norm of zeros lets nothing through, one of negative values turns every sign. Some norms add
    one to their weight, for which both are sound: asked by running them with zeros."""
    if bool((tensor > 0).any()) or not _is_silent(model.get_submodule(name.rpartition(".")[0])):
        return []
    what = "negative values" if tensor.any() else "zeros"
    return [f"{name} holds {what} only"]


def _is_silent(norm: Any) -> bool:
    """Whether a norm gives zeros where all of its parameters are zero."""
    try:
        probe = copy.copy(norm)
        probe._parameters = {
            part: torch.nn.Parameter(torch.zeros(value.shape)) if value is not None else None
            for part, value in norm._parameters.items()
        }
        width = norm.weight.shape[-1]
        return not bool(probe.forward(torch.linspace(-1, 1, width)[None]).any())
    except Exception:  # one that takes more than its input
        return False


class Copies:
    """Tensors that are the same, bit by bit: one was written over the other."""

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


def tied_faults(tensors: CheckpointTensors, whole: Expectation) -> list[str]:
    """A head that the config ties to the embedding, and that is stored with other values."""
    head, embedding = whole.tied, whole.embedding
    if head is None or embedding is None or head not in tensors or embedding not in tensors:
        return []
    if torch.equal(tensors[head].float(), tensors[embedding].float()):
        return []
    return [f"{head} differs from {embedding}, to which tie_word_embeddings ties it"]
