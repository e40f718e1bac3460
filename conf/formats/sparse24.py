"""2:4 sparsity: two zeros in every four weights of a row.

Checkpoints made here store pruned weights dense. No engine runs sparse ones of other tools.
"""

from conf.formats import unquantized
from conf.formats.base.stored_format import KernelSupport, Machine, StoredFormat
from conf.formats.base.tensors import StoredTensor
from conf.formats.quant_args import QuantArgs, QuantGroup, QuantizationConfig


class Sparse24(StoredFormat):
    name = "sparse24"

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        return weights is None  # a recipe that prunes and quantizes nothing

    def is_whole_config(self, config: QuantizationConfig | None) -> bool:
        return config is not None and config.sparsity is not None

    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        return unquantized.FORMAT.tensors(group, rows, columns)

    def kernels(self, weights: QuantArgs | None) -> str:
        return "the 16-bit kernels; vLLM has none for 2:4"

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        return KernelSupport(
            False,
            "it is stored sparse, and vLLM has had no kernels for 2:4 since 0.19",
            "the same recipe of this version, which stores pruned weights dense",
        )


FORMAT = Sparse24()
