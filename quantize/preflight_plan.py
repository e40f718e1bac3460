"""What pre-flight finds: the recipe for this model, its needs of memory and time, in words."""

from dataclasses import dataclass

from conf.durations import duration
from conf.formats.served import kernels
from conf.schema.mixed import layer_formats
from conf.schema.number_format import NumberFormat
from conf.schema.recipe import RecipeConfig
from quantize.mixed.plan import limit_text

SHARE_FOR_A_MODEL = 0.9
"""Of a GPU's memory. The rest is for what a forward pass computes."""


@dataclass
class Preflight:
    """The result of the checks; a check that fails raises instead."""

    recipe: RecipeConfig
    """The recipe with the command's options applied and its group size resolved."""
    modules: int
    """Modules that will be quantized or pruned."""
    disk_gib: float
    """Disk space needed for the checkpoint and for the layers saved for a resume."""
    host_gib: float
    """Host memory needed."""
    gpu_gib: float
    """Least GPU memory, for three layers and the step; activations move to the host if needed."""
    gpu_peak_gib: float
    """Peak on the GPU while calibrating, with as many activations there as fit."""
    model_gib: float
    """The original's weights in 16 bits. Once calibrated, the model is checked on the GPU, as much
    of it as fits."""
    calibration_s: float
    """An estimate of the calibration."""
    other_s: float
    """An estimate of the rest of the command, without a download."""
    machine: str = ""
    """The GPU that the plan is for, where it is not this machine."""
    has_experts: bool = False
    gpus: int = 1
    """GPUs that calibrate together. Each needs the same memory."""
    card_gib: float | None = None
    """Memory of one GPU, where it is known."""

    def lines(self) -> list[str]:
        return [
            *([f"planned for {self.machine}, not for this machine"] if self.machine else []),
            f"{self.modules} modules, {', then '.join(self.recipe.steps)}",
            f"needs {self.disk_gib:.1f} GiB of disk, {self.host_gib:.1f} GiB of memory and, on a "
            f"GPU, {self.gpu_gib:.1f} GiB there{self._peak_text()}; {self._time_text()}",
            *self._card_lines(),
            *([] if self.recipe.file else _kernel_lines(self.recipe, self.has_experts)),
        ]

    def _card_lines(self) -> list[str]:
        """Whether one GPU suffices: layers pass through it one after the other, so that its peak
        does not depend on their number."""
        if self.card_gib is None or self.gpu_gib > self.card_gib:
            return []
        cards = "one GPU suffices" if self.gpus == 1 else f"{self.gpus} GPUs share the text"
        fits = self.model_gib < SHARE_FOR_A_MODEL * self.card_gib
        after = f"{self.model_gib:.1f} GiB" if fits else "as much as fits"
        return [
            f"{cards}: {self.gpu_peak_gib:.1f} of {self.card_gib:.0f} GiB at the peak of "
            f"calibrating; then the model is checked there ({after})"
        ]

    def _time_text(self) -> str:
        other = f"{duration(max(self.other_s, 1))} to load, save and verify"
        if not self.calibration_s:
            return f"about {other}"
        return f"about {duration(max(self.calibration_s, 1))} to calibrate and {other}"

    def _peak_text(self) -> str:
        has_activations = round(self.gpu_peak_gib, 1) > round(self.gpu_gib, 1)
        return f" ({self.gpu_peak_gib:.1f} with activations)" if has_activations else ""


def _kernel_lines(recipe: RecipeConfig, has_experts: bool) -> list[str]:
    if recipe.auto is None:
        return [_kernel_text(recipe.weights, recipe.activations, has_experts)]
    formats = [form for form in layer_formats(recipe) if form.weights is not None]
    return [
        limit_text(recipe),
        *(
            f"{form.name}: {_kernel_text(form.weights, form.activations, has_experts)}"
            for form in formats
        ),
    ]


def _kernel_text(
    weights: NumberFormat | None, activations: NumberFormat | None, has_experts: bool
) -> str:
    names = kernels(
        weights.stored if weights else None, activations.stored if activations else None
    )
    if not names:
        return "vLLM has no kernel for it"
    experts = "; experts run in its fused MoE kernels" if has_experts else ""
    return f"vLLM will run it with {names}{experts}"
