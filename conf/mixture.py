"""How the files of a mixture of experts name its tensors, by family.

The names are those of checkpoints on the hub and of vLLM's loaders:
`model.layers.0.mlp.experts.3.gate_proj.weight`, or in Mixtral's files
`model.layers.0.block_sparse_moe.experts.3.w1.weight`.
"""

from typing import NamedTuple


class MixtureNames(NamedTuple):
    """The names of one family."""

    block: str
    """The part of a decoder layer that has the router and the experts."""
    gate: str
    """The product of an expert whose output goes through the activation."""
    up: str
    """The product that the gate is multiplied with."""
    down: str
    """The product that reads both."""
    width: str
    """config.json's field for the width inside an expert."""

    @property
    def experts(self) -> str:
        return f"{self.block}.experts"


QWEN = MixtureNames("mlp", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size")
MIXTURES = {
    "mixtral": MixtureNames("block_sparse_moe", "w1", "w3", "w2", "intermediate_size"),
    "qwen2_moe": QWEN,
    "qwen3_moe": QWEN,
}
"""By model type: the families that can be quantized."""
