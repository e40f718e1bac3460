"""NVFP4 weights and activations, which Blackwell multiplies as they are.

GPUs before Blackwell have no FP4 products. vLLM runs the same checkpoint there with Marlin, as
weight-only: activations stay at 16 bit (`init_nvfp4_linear_kernel`, 0.25.1 and 0.32).
"""

from conf.formats.base.stored_format import BLACKWELL, KernelSupport, Machine
from conf.formats.nvfp4 import Nvfp4, has_exponent_scales, is_fp4
from conf.formats.quant_args import QuantArgs


class Nvfp4Activations(Nvfp4):
    name = "nvfp4_activations"

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        return activations is not None and is_fp4(weights) and not has_exponent_scales(weights)

    def kernels(self, weights: QuantArgs | None) -> str:
        return (
            "FlashInfer or CUTLASS FP4 products on Blackwell; before it, since Turing, Marlin as "
            "weight-only, with 16-bit activations"
        )

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        if machine.capability is None:
            return machine.lacks_cpu_kernel("fp4")
        if machine.capability >= BLACKWELL:
            return KernelSupport(True, "native FP4")
        return KernelSupport(True, weight_only_summary(machine), "recipe=nvfp4a16")


def weight_only_summary(machine: Machine) -> str:
    """How a GPU without FP4 products runs a checkpoint with FP4 activations."""
    return (
        "weight-only Marlin with 16-bit activations, since compute capability "
        f"{machine.capability:g} multiplies no FP4 ({BLACKWELL:g} does)"
    )


FORMAT = Nvfp4Activations()
