"""The interface of a stored format. Nothing here needs torch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from conf.formats.base.refusals import Refusal
from conf.formats.base.tensors import StoredTensor
from conf.formats.quant_args import INT, QuantArgs, QuantGroup, QuantizationConfig

TURING, AMPERE, ADA, HOPPER, BLACKWELL = 7.5, 8.0, 8.9, 9.0, 10.0  # compute capabilities


@dataclass(frozen=True)
class Machine:
    """The hardware that decides which kernels run."""

    capability: float | None
    """Compute capability of the GPU; null without a GPU."""
    processor: str
    """x86_64, AMD64 or aarch64."""
    has_amx: bool = False
    """Whether an x86 CPU has Intel's AMX."""
    has_i8mm: bool = False
    """Whether an ARM CPU has INT8 matrix products."""

    @property
    def is_x86(self) -> bool:
        return self.processor in ("x86_64", "AMD64")

    def lacks_cpu_kernel(self, numbers: str) -> "KernelSupport":
        """vLLM has no kernel for these number types on this processor."""
        reason = f"vLLM has no CPU kernel for {numbers} on {self.processor}"
        return KernelSupport(False, reason, "w8a8_smooth_gptq")

    def lacks_experts_kernel(self, numbers: str, needed: str = "") -> "KernelSupport":
        """vLLM's CPU kernels for these number types do not take experts here."""
        hint = f"; that needs {needed}" if needed else ""
        reason = f"vLLM has no kernel for experts of {numbers} on this CPU ({self.processor}){hint}"
        return KernelSupport(False, reason, "the original")


@dataclass(frozen=True)
class KernelSupport:
    """Whether vLLM runs a stored format on a machine."""

    runs: bool
    summary: str
    """The kernel, or why there is none."""
    instead: str = ""
    """What to serve instead where it does not run, or runs slowly."""


class StoredFormat(ABC):
    """One way to store the weights of a linear layer."""

    name: str
    spellings: tuple[str, ...] = ()
    """`format` in compressed-tensors' config. Formats of different number types may share one."""
    stated_spelling: str | None = None
    """The spelling that a scheme must name, where compressed-tensors would infer another one."""
    methods: tuple[str, ...] = ()
    """`quant_method` of other tools that store this format."""
    verified_methods: tuple[str, ...] = ()
    """Those of them whose checkpoints quantize can verify."""
    packed_parts: tuple[str, ...] = ()
    """Tensors that hold several weights in an element."""
    other_parts: tuple[str, ...] = ("_scale", "_zero_point")
    """Endings of tensors that hold no weights."""
    marks: tuple[str, ...] = ()
    """Tensors that only a quantized layer has."""

    @abstractmethod
    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        """Whether this is the format for these number types, whatever their details."""

    @abstractmethod
    def kernels(self, weights: QuantArgs | None) -> str:
        """vLLM's kernels for it on all hardware; empty where it has none."""

    @abstractmethod
    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        """Whether and with which kernel vLLM runs it on a machine; None where that is unknown."""

    @abstractmethod
    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        """The tensors of a linear layer, by the last part of their names."""

    def refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> Refusal | None:
        """Why no engine runs these number types in this format; None where one does."""
        return None

    def experts_refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> str | None:
        """Why no engine runs a mixture's experts in this format; None where one does."""
        return f"no engine runs experts in the format {self.name}"

    def experts_support(self, weights: QuantArgs, machine: Machine) -> KernelSupport | None:
        """As `support`, for a mixture's experts: engines have kernels of their own for them."""
        return None

    def is_whole_config(self, config: QuantizationConfig | None) -> bool:
        """Whether the whole config has this format, whatever its groups are."""
        return False

    def read_other(self, method: str, content: Mapping[str, object]) -> QuantGroup:
        """What another tool's config describes; `method` is one of `methods`."""
        raise NotImplementedError(f"{self.name}: no reader for configs of {method}")

    def read_groups(self, method: str, content: Mapping[str, object]) -> list[QuantGroup]:
        """The same, where another tool's config describes several groups."""
        return [self.read_other(method, content)]

    def fits(self, group: QuantGroup) -> bool:
        """Whether a group's number types can be stored in this format."""
        return self.covers(group.weights, group.activations)

    def code_range(self, weights: QuantArgs) -> tuple[float, float]:
        """The smallest and the largest stored number."""
        half = 1 << (weights.bits - 1)
        return -half, half - 1

    def bits(self, weights: QuantArgs) -> float:
        """Bits of a stored weight, without its share of the scales."""
        return weights.bits

    def column_step(self, weights: QuantArgs) -> int:
        """The number that a layer's columns must be a multiple of."""
        return 1

    def describe(self, weights: QuantArgs) -> str:
        """A layer's format, for verification and the manifest."""
        size = f" of {weights.group_size}" if weights.group_size else ""
        return f"{weights.number}, a scale for each {weights.strategy}{size}"

    def product(self, group: QuantGroup) -> str | None:
        """The number type that matrices are multiplied in; None for the engine's own."""
        if group.activations is None:
            return None
        if group.activations.bits == 4:
            return "fp4"
        return "int8" if group.activations.type == INT else "fp8"

    def multiplies(self, weights: QuantArgs, activations: QuantArgs) -> bool:
        """Whether some engine multiplies these weights with these activations."""
        is_wide_enough = activations.bits in (4, 8, 16) and activations.bits >= weights.bits
        return weights.type == activations.type and is_wide_enough
