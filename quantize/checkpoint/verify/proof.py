"""The result of verifying a checkpoint."""

from dataclasses import dataclass, field


@dataclass
class Proof:
    """The contents and faults of a checkpoint. `faults` is empty for a sound one."""

    formats: dict[str, int] = field(default_factory=dict)
    """Number of linear layers by their stored format."""
    layers: int = 0
    """Linear layers of the architecture."""
    tensors: int = 0
    """Tensors read."""
    bytes: int = 0
    """Bytes of all tensors."""
    faults: list[str] = field(default_factory=list)
    """Each names a tensor, module or field and what is wrong with it."""
