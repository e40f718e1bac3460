"""Weights of the original, in 16 or 32 bits."""

from conf.formats.base.stored_format import KernelSupport, Machine, StoredFormat
from conf.formats.base.tensors import FLOATS, Role, StoredTensor
from conf.formats.quant_args import QuantArgs, QuantGroup, QuantizationConfig

KERNELS = "the 16-bit kernels"
GROUP = QuantGroup("unquantized", None)
"""The group of layers that no group of a config quantizes."""


class Unquantized(StoredFormat):
    name = "unquantized"

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        return False  # only a config without quantization selects it

    def is_whole_config(self, config: QuantizationConfig | None) -> bool:
        return config is None

    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        return {"weight": StoredTensor(Role.WEIGHT, ((rows, columns),), FLOATS)}

    def kernels(self, weights: QuantArgs | None) -> str:
        return KERNELS

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        return KernelSupport(True, KERNELS)


FORMAT = Unquantized()
