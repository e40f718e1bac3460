"""MXFP4 and MXFP8 of other tools: floats in groups, with scales that are powers of two.

Their checkpoints can be verified. No recipe makes them, so number types alone never select them:
the config has to name the format.
"""

from dataclasses import replace

from conf.formats import fp8, nvfp4
from conf.formats.base.stored_format import KernelSupport, Machine, StoredFormat
from conf.formats.base.tensors import (
    EXPONENTS,
    StoredTensor,
    activation_tensors,
    codes,
    fp4_pairs,
    scales,
)
from conf.formats.quant_args import FLOAT, QuantArgs, QuantGroup

MXFP4, MXFP8 = "mxfp4-pack-quantized", "mxfp8-quantized"
BITS = {MXFP4: 4, MXFP8: 8}


class Mx(StoredFormat):
    name = "mx"
    spellings = (MXFP4, MXFP8)
    packed_parts = ("weight_packed",)
    marks = ("weight_scale", "weight_packed")

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        return False

    def fits(self, group: QuantGroup) -> bool:
        weights = group.weights
        if weights is None or weights.bits != BITS.get(group.format):
            return False
        return weights.type == FLOAT and weights.strategy == "group"

    def code_range(self, weights: QuantArgs) -> tuple[float, float]:
        return _similar_format(weights).code_range(weights)

    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        weights = group.weights
        assert weights is not None
        tensors = (
            {"weight_packed": fp4_pairs(rows, columns)}
            if group.format == MXFP4
            else {"weight": codes("F8_E4M3", rows, columns)}
        )
        exponents = scales(weights, rows, columns)
        tensors["weight_scale"] = replace(exponents, dtypes=("U8", "F8_E8M0"), encoding=EXPONENTS)
        return tensors | activation_tensors(group.activations)

    def kernels(self, weights: QuantArgs | None) -> str:
        assert weights is not None
        return _similar_format(weights).kernels(weights)

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        assert weights is not None
        return _similar_format(weights).support(weights, machine)

    def experts_refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> str | None:
        return None


def _similar_format(weights: QuantArgs) -> StoredFormat:
    """The format with the same kernels and code range."""
    return nvfp4.FORMAT if weights.bits == 4 else fp8.FORMAT


FORMAT = Mx()
