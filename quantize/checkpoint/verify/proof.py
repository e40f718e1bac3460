"""What a proof found."""

from dataclasses import dataclass, field


@dataclass
class Proof:
    """What was found. `faults` is empty for a checkpoint that is what it says."""

    formats: dict[str, int] = field(default_factory=dict)
    """Linear layers by the format found in the file."""
    layers: int = 0
    """Linear layers of the architecture."""
    tensors: int = 0
    """Tensors read."""
    bytes: int = 0
    """Bytes of all tensors."""
    faults: list[str] = field(default_factory=list)
    """Each names a tensor, module or field and what is wrong with it."""
