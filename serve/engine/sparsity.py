"""Whether an engine will find a checkpoint's weights to be 2:4.

Our kernels look at the weights when they load them, whoever made them. Before that, our own
checkpoints say it in their manifest. Of others, some rows of some weights are read.
"""

from collections.abc import Mapping
from pathlib import Path

from conf.files.stored_tensor import Tensor
from conf.files.tensor_files import SUFFIX, tensor_files
from conf.files.tensor_rows import middle_rows
from quantize.checkpoint.manifest import is_pruned
from serve.kernels.memory import is_eight_bit

ROWS = 32
"""Of each tensor. One row of a dense weight has hundreds of fours, so none of them passes."""
PLACES = (0.25, 0.5, 0.75)
"""Of the tensors of a kind."""
FOUR, MOST_USED = 4, 2
ZEROS = {"I8": b"\x00", "F8_E4M3": b"\x00\x80"}
"""The bytes that are zero: FP8 has a negative one, too."""


def is_sparse24(folder: Path) -> bool:
    """By the manifest, else by the weights. One 2:4 weight stands for all of them: the memory of an
    engine is computed for the most that it can keep."""
    pruned = is_pruned(folder)
    return _has_sparse_weights(folder) if pruned is None else pruned


def _has_sparse_weights(folder: Path) -> bool:
    if not any(folder.glob(f"*{SUFFIX}")):  # random weights
        return False
    stored = tensor_files(folder)
    return any(
        is_sparse24_bytes(
            middle_rows(stored.owners[name], name, stored.tensors[name], ROWS),
            ZEROS[stored.tensors[name].dtype],
        )
        for name in _samples(stored.tensors)
    )


def _samples(tensors: Mapping[str, Tensor]) -> list[str]:
    """Some weights of each kind of layer, such as q_proj, spread over the model: tools may leave
    kinds and the first and the last layers dense."""
    kinds: dict[str, list[str]] = {}
    for name, tensor in sorted(tensors.items()):
        is_matrix = len(tensor.shape) == 2 and tensor.count > 0 and tensor.shape[1] % FOUR == 0
        if is_matrix and is_eight_bit(name, tensor):
            kinds.setdefault(name.split(".")[-2], []).append(name)
    return [
        name
        for names in kinds.values()
        for name in {names[int(len(names) * place)] for place in PLACES}
    ]


def is_sparse24_bytes(numbers: bytes, zeros: bytes) -> bool:
    """Whether at most two of four neighbours differ from zero. In plain Python, where adding four
    long integers adds all fours at once."""
    used = numbers.translate(bytes(byte not in zeros for byte in range(256)))
    counts = sum(int.from_bytes(used[place::FOUR]) for place in range(FOUR))
    return max(counts.to_bytes(len(numbers) // FOUR)) <= MOST_USED
