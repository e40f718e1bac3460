"""The formulas and tables of the simulation of several H200.

No machine with several GPUs was at hand. The formulas take what one H200 was measured to do
(quantize/estimate.py) and NVLink's rate from the datasheet. docs/scaling.md explains them.
"""

import heapq
from dataclasses import dataclass
from functools import cache

from conf.compose import compose
from conf.schema.commands import QuantizeConfig
from conf.schema.recipe import RecipeConfig
from conf.sources import RECIPES
from quantize.command import COMMAND
from quantize.estimate import H200, LayerShape, Rates, Text, calibration_seconds
from quantize.models.fetch import without_weights
from quantize.models.load import empty_model
from quantize.steps.base.step import BYTES_32_BIT, Step, steps_named

LINK = 450e9  # bytes a second, one direction of NVLink 4
# torch.linalg.cholesky of a float32 matrix of 12,288 columns, with an inverse and a second
# factorization, took 0.15 s: 4/3 n^3 operations.
FACTORING = 4 / 3 * 12288**3 / 0.15
# Of a candidate of Qwen3-8B in results/h200-qwen3-8b: from the first run of the first to the first
# run of the ninth, 1,470 s. That includes the engine's start.
EVALUATION_SECONDS, EVALUATED_PARAMETERS = 1470 / 8, 8.19e9
# docs/quantizing.md: w8a8_smooth_gptq of the same model took 243 s, of which 67 s were calibration
# and 20 s were for random weights. The rest is for files: loading, saving, verifying, hashes.
FILE_SECONDS = 243 - 67 - 20
LAUNCH_SECONDS = 2.0  # the limit that a launcher has to keep, beyond the engine's start
NOT_IN_SWEEP = ("auto", "auto_fp8", "w4a16_autoround")
CALIBRATED_MODEL, CALIBRATED_RECIPES = "llama-3.1-70b", ("w4a16_gptq", "w8a8_smooth_gptq")
SWEPT_MODELS = ("qwen3-8b", "llama-3.1-70b")
CARDS = (1, 2, 4, 8)
TEXT = Text(samples=256, length=2048, batch_size=8)


@dataclass(frozen=True)
class Machine:
    """Cards of one kind with one link between them."""

    gpus: int
    rates: Rates = H200
    link: float = LINK
    factoring: float = FACTORING


@dataclass(frozen=True)
class LayerTime:
    """The seconds of one layer, by what they depend on."""

    text: float
    """Passes and X'X: each card has its share of the text."""
    rows: float
    """Solving: each card has its share of the rows."""
    factoring: float
    """The Cholesky factors, which every card computes."""
    exchange: float
    """Of X'X and of the solved rows."""

    @property
    def total(self) -> float:
        return self.text + self.rows + self.factoring + self.exchange


def layer_time(
    config: QuantizeConfig, steps: list[Step[object]], shape: LayerShape, machine: Machine
) -> LayerTime:
    """One layer of a recipe that solves for its weights once."""
    whole = calibration_seconds(config.recipe, steps, shape, TEXT, machine.rates)
    passing_steps = [step for step in steps if step.joined_step(config.recipe) is None]
    layer = (whole - machine.rates.once(len(passing_steps))) / shape.layers
    solving = shape.solved / machine.rates.solving
    factoring = min(solving, _factoring_operations(shape) / machine.factoring)
    others = machine.gpus - 1
    sums = shape.squared_widths / 2 * BYTES_32_BIT * others
    rows = shape.weights * BYTES_32_BIT * others / machine.gpus
    return LayerTime(
        text=(layer - solving) / machine.gpus,
        rows=(solving - factoring) / machine.gpus,
        factoring=factoring,
        exchange=(sums + rows) / machine.link,
    )


def _factoring_operations(shape: LayerShape) -> float:
    """Of the widest X'X and of the others, which are as wide as the residual stream."""
    others = max(0.0, shape.squared_widths - shape.widest**2) / shape.hidden**2
    return (shape.widest**3 + others * shape.hidden**3) / 3


def makespan(seconds: list[float], workers: int) -> float:
    """When the last of these jobs ends, the longest first, each on the first free worker."""
    free = [0.0] * workers
    for duration in sorted(seconds, reverse=True):
        heapq.heappush(free, heapq.heappop(free) + duration)
    return max(free)


def job_seconds(name: str | None, shape: LayerShape, parameters: float) -> float:
    """Quantizing and evaluating one candidate on one card; without a recipe, the original."""
    size = parameters / EVALUATED_PARAMETERS
    if name is None:
        return LAUNCH_SECONDS + EVALUATION_SECONDS * size
    recipe = _recipe(name)
    text = TEXT if recipe.needs_text else Text(0, TEXT.length, 0)
    calibration = calibration_seconds(recipe, steps_named(recipe.steps), shape, text, H200)
    return LAUNCH_SECONDS + calibration + (FILE_SECONDS + EVALUATION_SECONDS) * size


def sweep_recipes() -> list[str]:
    names = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    return [name for name in names if name not in NOT_IN_SWEEP]


@cache
def _recipe(name: str) -> RecipeConfig:
    return _config("tiny", name).recipe


def _config(model: str, recipe: str) -> QuantizeConfig:
    config = compose(COMMAND, [f"model={model}", f"recipe={recipe}"])
    assert isinstance(config, QuantizeConfig)
    return config


def shape_of(model: str) -> tuple[LayerShape, float]:
    """The sizes of a layer, and the parameters of the model."""
    config = _config(model, CALIBRATED_RECIPES[0])
    with without_weights(config.model) as folder:
        empty = empty_model(folder, trust_remote_code=False)
    return LayerShape.of(empty), float(sum(each.numel() for each in empty.parameters()))


def calibration_table() -> list[str]:
    lines = ["| recipe | GPUs | text | rows | factors | exchange | s a layer | min | times |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    shape, _ = shape_of(CALIBRATED_MODEL)
    for recipe in CALIBRATED_RECIPES:
        config = _config(CALIBRATED_MODEL, recipe)
        steps = steps_named(config.recipe.steps)
        single = layer_time(config, steps, shape, Machine(1)).total
        for gpus in CARDS:
            found = layer_time(config, steps, shape, Machine(gpus))
            minutes = (found.total * shape.layers + H200.once(1)) / 60
            parts = (found.text, found.rows, found.factoring, found.exchange, found.total)
            cells = " | ".join(f"{part:.2f}" for part in parts)
            speedup = single / found.total
            lines.append(f"| {recipe} | {gpus} | {cells} | {minutes:.1f} | {speedup:.1f} |")
    return lines


def sweep_table() -> list[str]:
    lines = ["| model | GPUs | candidates | hours | longest job, min |", "|---|---|---|---|---|"]
    for model in SWEPT_MODELS:
        shape, parameters = shape_of(model)
        candidates = [None, *sweep_recipes()]
        seconds = [job_seconds(recipe, shape, parameters) for recipe in candidates]
        for gpus in CARDS:
            hours, longest = makespan(seconds, gpus) / 3600, max(seconds) / 60
            lines.append(f"| {model} | {gpus} | {len(seconds)} | {hours:.2f} | {longest:.0f} |")
    return lines


def show() -> None:
    """Prints the tables."""
    print("A simulation from figures of one H200, not a measurement.\n")
    print(f"Calibrating {CALIBRATED_MODEL}, 256 x 2,048 tokens:\n")
    print("\n".join(calibration_table()))
    print("\nA sweep, one job a GPU:\n")
    print("\n".join(sweep_table()))
