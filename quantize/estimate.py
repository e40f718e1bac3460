"""How long calibrating takes and how much GPU memory it needs, estimated before it begins.

The time of a layer is that of its forward passes, of the products X'X and of solving by them.
A step's peak on the GPU is the activations that are kept there, three layers' weights, and what a
pass computes for one batch or the step itself needs, whichever is more.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import torch

from conf.schema.recipe import RecipeConfig
from quantize.models.experts import experts_of
from quantize.steps.base.step import BYTES_16_BIT, BYTES_32_BIT, Step


@dataclass(frozen=True)
class Rates:
    """How fast a machine calibrates."""

    passes: float
    """Operations a second of a forward pass, matrix products and attention."""
    products: float
    """Operations a second of X'X, one triangle of it."""
    solving: float
    """Weights times columns that GPTQ and SparseGPT solve for in a second."""
    distances: float
    """Distances between vectors of weights and codebook entries that VPTQ compares in a second."""
    step_seconds: float
    """What a step costs besides its layers: tracing, loading, the embedding."""
    start_seconds: float
    """What a run costs once: kernels are compiled when they are first used, and the last layers are
    still written when the calibration ends."""

    def once(self, steps: int) -> float:
        """What a run with so many steps costs besides its layers."""
        return self.start_seconds + steps * self.step_seconds


# One layer of Qwen3-8B's width, 256 x 2,048 tokens in batches of 8, bf16, torch 2.11, by
# `python -m quantize.benchmark`: w4a16_gptq takes 0.78 s, w8a8_smooth_gptq 0.81 s. All X'X take
# 0.16 s, solving all seven modules 0.1 s. A run without layers takes 1 s.
# All 36 layers with w4a16_awq take 64 s, of which 52 s are the time in layers.
# Distances are not measured: each is written and read once, in float32.
H200 = Rates(
    passes=5.9e14,
    products=6.6e14,
    solving=1.4e13,
    distances=3e11,
    step_seconds=1.5,
    start_seconds=6,
)
H200_TFLOPS = 989
# SmolLM2 135M on two Neoverse-N1 cores, 16 x 256 tokens, float32: SmoothQuant takes 8 s for 30
# layers, GPTQ 87 s, of which 65 s are solving. A core compares 3e8 distances a second.
CPU = Rates(
    passes=1.1e11,
    products=1.1e11,
    solving=1.3e9,
    distances=5e8,
    step_seconds=0.5,
    start_seconds=0,
)

# Copies of a batch that a pass holds at its peak: of the residual stream (norms are in float32)
# and of the widest input.
STREAM_COPIES, WIDEST_COPIES = 8, 4
# Share of the free GPU memory that activations may take: other needs are only estimates.
SHARE_FOR_ACTIVATIONS = 0.5
RESERVE = 1.25  # what a step may need, in units of the estimate
MOST_KEPT = 12 * 2**30
"""Up to so many bytes of activations, a value that can be computed again is kept on the GPU."""


@dataclass(frozen=True)
class Text:
    """The size of the calibration text."""

    samples: int
    length: int
    batch_size: int

    @property
    def tokens(self) -> int:
        return self.samples * self.length

    @property
    def batch_tokens(self) -> int:
        return self.batch_size * self.length


@dataclass(frozen=True)
class LayerShape:
    """The sizes of a decoder layer, as the mean of all layers."""

    layers: int
    weights: float
    """Weights in linear layers."""
    squared_widths: float
    """The columns of each X'X, squared and summed. Modules that see the same input share one."""
    solved: float
    """Weights times columns, summed over the modules."""
    hidden: int
    widest: int
    """Columns of the widest module."""
    experts_inside: float = 0.0
    """Columns of the last products of all experts together; 0 without experts."""

    @property
    def has_experts(self) -> bool:
        return self.experts_inside > 0

    @classmethod
    def of(cls, model: Any) -> "LayerShape":
        """Of a model with or without weights. The head is no part of a layer."""
        head = model.get_output_embeddings()
        linears = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not head
        }
        widths: dict[str, list[int]] = defaultdict(list)
        for name, module in linears.items():
            widths[name.rpartition(".")[0]].append(module.in_features)
        # Of the modules in one block, the last reads what the others computed (o, down).
        inputs = [[*set(block[:-1]), block[-1]] for block in widths.values()]
        experts = experts_of(model)
        # All experts of a layer read the same tokens.
        shared = sum((len(each) - 1) * each[0].gate.in_features ** 2 for each in experts.values())
        inside = sum(expert.down.in_features for each in experts.values() for expert in each)
        sizes = [(module.out_features, module.in_features) for module in linears.values()]
        layers = max(1, model.config.num_hidden_layers)
        return cls(
            layers=layers,
            weights=sum(rows * columns for rows, columns in sizes) / layers,
            squared_widths=(sum(width**2 for block in inputs for width in block) - shared) / layers,
            solved=sum(rows * columns**2 for rows, columns in sizes) / layers,
            hidden=model.config.hidden_size,
            widest=max((columns for _, columns in sizes), default=model.config.hidden_size),
            experts_inside=inside / layers,
        )


# ---- time -----------------------------------------------------------------------------------


def rates(bf16_tflops: float | None, on_gpu: bool) -> Rates:
    """Those of a GPU with this peak, scaled from the measured one; or those of a CPU."""
    if not on_gpu:
        return CPU
    speed = (bf16_tflops or H200_TFLOPS) / H200_TFLOPS
    return replace(
        H200,
        passes=H200.passes * speed,
        products=H200.products * speed,
        solving=H200.solving * speed,
        distances=H200.distances * speed,
    )


def calibration_seconds(
    recipe: RecipeConfig, steps: list[Step[Any]], shape: LayerShape, text: Text, rate: Rates
) -> float:
    """The time of all steps that pass the text through the model."""
    attention = 2 * text.tokens * text.length * shape.hidden  # two products, half of each masked
    a_pass = (2 * shape.weights * text.tokens + attention) / rate.passes
    products = shape.squared_widths * text.tokens / rate.products
    solving = products + shape.solved / rate.solving
    seconds = 0.0
    for step in steps:
        if step.joined_step(recipe) is not None:
            continue
        passes = step.passes_for(recipe, text.samples)
        layer = passes * a_pass + (solving if step.solves else 0)
        layer += step.distances(recipe, shape.weights) / rate.distances
        seconds += shape.layers * layer + (rate.step_seconds if passes else 0)
    return seconds + rate.start_seconds if seconds else 0.0


# The same command with w4a16_awq takes 115 s besides: it loads, hashes and asks the original of
# 16.4 GB, saves the checkpoint, loads it again and compares it with the original.
OTHER_SECONDS = 15
"""Of a model of any size: packages are imported, text is read."""
OTHER_BYTES_A_SECOND = 1.6e8
"""Of the original's weights."""


def other_seconds(weights: int) -> float:
    """The time of a command besides its calibration: loading, saving, verifying. It depends on the
    disk and the CPU more than on the GPU. A download is not counted."""
    return OTHER_SECONDS + weights * BYTES_16_BIT / OTHER_BYTES_A_SECOND


# ---- memory of the GPU ----------------------------------------------------------------------


def stream_bytes(shape: LayerShape, text: Text) -> float:
    """All activations between two layers, and one batch more: a batch's input is freed when its
    output is stored."""
    return (text.tokens + text.batch_tokens) * shape.hidden * BYTES_16_BIT


def block_bytes(steps: list[Step[Any]], shape: LayerShape, text: Text) -> float:
    """What a step that calibrates in stages keeps beside the stream: attention's outputs."""
    return text.tokens * shape.hidden * BYTES_16_BIT if _has_stages(steps, shape) else 0.0


def inner_bytes(steps: list[Step[Any]], shape: LayerShape, text: Text) -> float:
    """What such a step keeps as well where there is room: inputs of an MLP's last module."""
    if not _has_stages(steps, shape):
        return 0.0
    others = stream_bytes(shape, text) + block_bytes(steps, shape, text)
    return min(text.tokens * shape.widest * BYTES_16_BIT, max(0.0, MOST_KEPT - others))


def _has_stages(steps: list[Step[Any]], shape: LayerShape) -> bool:
    """Mixtures of experts are calibrated as a whole."""
    return not shape.has_experts and any(step.reads_inputs for step in steps)


def three_layers_bytes(shape: LayerShape) -> float:
    return 3 * shape.weights * BYTES_16_BIT


def step_bytes(step: Step[Any], shape: LayerShape, batch_tokens: int) -> float:
    """What a step needs beside the activations that are kept on the GPU: three layers' weights (one
    is copied back, one is computed, one is loaded), and what a pass of one batch or the step itself
    takes, which come one after the other. A mixture of experts is calibrated as a whole: a pass
    holds what all experts compute inside, and has the X'X of all of them."""
    batch = batch_tokens * BYTES_16_BIT
    widths = STREAM_COPIES * shape.hidden + WIDEST_COPIES * shape.widest + shape.experts_inside
    a_pass = batch * widths
    products = shape.squared_widths * BYTES_32_BIT if shape.has_experts and step.solves else 0.0
    solving = step.gpu_bytes(shape.weights, shape.widest)
    return three_layers_bytes(shape) + products + max(a_pass, solving)


def activation_budget(free: float, needed: float) -> float:
    """Bytes of activations that a GPU keeps, with this much free memory and need of a step."""
    return max(0.0, min(free - RESERVE * needed, SHARE_FOR_ACTIVATIONS * free))
