"""Whether a recipe fits an architecture: which modules its patterns reach, and their widths."""

import difflib
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from compressed_tensors.utils import match_named_modules, match_targets
from llmcompressor.modifiers import Modifier

from conf.errors import bad_input
from conf.formats.quant_args import QuantArgs
from conf.formats.registry import covering
from conf.schema.recipe import HEAD_FORMATS, RecipeConfig
from conf.schema.steps import Kind
from conf.terminal import listed
from quantize.recipe_file import listed as as_list
from quantize.recipe_file import scheme_targets, stored
from quantize.steps.base.step import steps_named

Linears = dict[str, torch.nn.Linear]
GROUP_SIZES = (128, 64, 32)
LISTED = 5  # modules that a message names before it says how many more
PATTERN_SECONDS = 5  # for one pattern on all names of a model; a sound one takes milliseconds
MASK_WIDTH = 4  # two zeros in every four weights of a row


@dataclass(frozen=True, eq=False)
class Format:
    """How the modules of one target are stored."""

    weights: QuantArgs
    activations: QuantArgs | None = None


@dataclass
class Part:
    """What one step of a recipe does to which modules."""

    option: str
    """How messages name it: recipe, or the file and its modifier."""
    targets: list[str]
    ignore: list[str]
    formats: dict[str, Format] = field(default_factory=dict)
    """By target; empty for a step that stores no weights anew."""
    prunes: bool = False


def parts_of(recipe: RecipeConfig) -> list[Part]:
    """The parts of our own recipe: one list of modules for all its steps."""
    formats = {}
    if recipe.weights is not None:
        activations = recipe.activations.stored if recipe.activations else None
        formats = dict.fromkeys(recipe.targets, Format(recipe.weights.stored, activations))
    return [Part("recipe", recipe.targets, recipe.ignore, formats, recipe.is_sparse)]


def parts_of_file(recipe: RecipeConfig, modifiers: list[Modifier]) -> list[Part]:
    """The parts of an llm-compressor recipe: each modifier with its own targets and ignore list."""
    parts = []
    for step, modifier in zip(steps_named(recipe.steps), modifiers, strict=True):
        option = f"{recipe.file}: {step.modifier_name}"
        ignore = as_list(getattr(modifier, "ignore", []))
        if step.kind is Kind.PRUNES:
            parts.append(Part(option, as_list(modifier.targets), ignore, prunes=True))
        elif step.kind is Kind.ROUNDS:
            formats = {
                target: Format(
                    stored(scheme.weights),
                    stored(scheme.input_activations) if scheme.input_activations else None,
                )
                for target, scheme in scheme_targets(modifier).items()
            }
            parts.append(Part(option, list(formats), ignore, formats))
        elif ignore:
            parts.append(Part(option, [], ignore))
    return parts


def check_fit(
    model: Any, recipe: RecipeConfig, name: str, parts: list[Part] | None = None
) -> Linears:
    """Raises where the recipe does not fit the architecture; the modules that it changes."""
    parts = parts or parts_of(recipe)
    modules: Linears = {}
    rounded: dict[str, str] = {}
    _check_experts(model, name)
    for part in parts:
        _check_patterns(model, part)
        reached = dict(matched(model, part.targets, part.ignore))
        if part.targets and not reached:
            raise bad_input(
                f"{part.option}: no linear layer of {type(model).__name__} is left: targets "
                f"{part.targets} without ignore {part.ignore}"
            )
        _check_head(model, recipe, part, reached)
        for name_of, module in reached.items() if part.formats else ():
            if name_of in rounded:
                raise bad_input(f"{part.option}: {name_of} is rounded by {rounded[name_of]} too")
            rounded[name_of] = part.option
            modules[name_of] = module
        _check_widths(part, reached)
        modules |= reached
    _check_head_groups(model, recipe)
    return modules


def fitting_group(model: Any, recipe: RecipeConfig) -> int:
    """The largest group that divides the columns of every module."""
    columns = {module.in_features for _, module in matched(model, recipe.targets, recipe.ignore)}
    for size in GROUP_SIZES:
        if all(width % size == 0 for width in columns):
            return size
    raise bad_input(f"group_size=auto: none of {GROUP_SIZES} divides {sorted(columns)} columns")


def matched(model: Any, targets: list[str], ignore: list[str]) -> list[tuple[str, Any]]:
    found = match_named_modules(model, targets, ignore)
    return [(name, module) for name, module in found if isinstance(module, torch.nn.Linear)]


# ---- patterns -----------------------------------------------------------------------------


def check_pattern_times(model: Any, option: str, patterns: list[str]) -> None:
    """Raises for an expression that tries so many ways that a single name takes forever."""
    names = [name for name, _ in model.named_modules()]
    for pattern in dict.fromkeys(patterns):
        if not pattern.startswith("re:"):
            continue
        expression = re.compile(pattern.removeprefix("re:"))
        try:
            with _time_limit(PATTERN_SECONDS):
                for name in names:
                    expression.match(name)
        except TimeoutError as error:
            raise bad_input(
                f"{option}: '{pattern}' takes more than {PATTERN_SECONDS} s on the names of the "
                "modules; write it without repeats inside repeats"
            ) from error


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Python's regular expressions have no limit of their own, but look for signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _check_patterns(model: Any, part: Part) -> None:
    check_pattern_times(model, part.option, [*part.targets, *part.ignore])
    names = [name for name, _ in model.named_modules() if name]
    for option, patterns in (("targets", part.targets), ("ignore", part.ignore)):
        for pattern in patterns:
            found = [module for _, module in match_named_modules(model, [pattern])]
            if not found:
                kinds = {type(module).__name__ for module in model.modules()}
                words = [*names, *kinds]
                close = difflib.get_close_matches(pattern.removeprefix("re:"), words, n=1)
                hint = f" Did you mean {close[0]}?" if close else ""
                raise bad_input(f"{part.option}.{option}: '{pattern}' matches no module.{hint}")
            linear = any(isinstance(module, torch.nn.Linear) for module in found)
            if option == "targets" and not linear:
                kind = type(found[0]).__name__
                raise bad_input(
                    f"{part.option}.targets: '{pattern}' matches no linear layer (only {kind}); "
                    "name linear layers, as Linear or re:.*_proj$"
                )


# ---- modules ------------------------------------------------------------------------------


def _check_experts(model: Any, name: str) -> None:
    """transformers keeps a layer's experts in one tensor of three dimensions, which no recipe's
    patterns reach: the checkpoint would be the original's size and say it is quantized."""
    tensors = model.named_parameters()
    fused = [part for part, tensor in tensors if tensor.dim() > 2 and "experts" in part]
    if fused:
        raise bad_input(
            f"model={name}: its experts are kept as one tensor ({fused[0]} and {len(fused) - 1} "
            "more), which no recipe quantizes; only dense models can be quantized here"
        )


def _check_head(model: Any, recipe: RecipeConfig, part: Part, modules: Linears) -> None:
    if model.config.tie_word_embeddings and "lm_head" in modules and not recipe.lm_head:
        raise bad_input(
            f"{part.option}.ignore: lm_head is the embedding in this model and would be quantized "
            "with it; leave it in ignore, or ask for it with lm_head=int8"
        )


def _check_widths(part: Part, modules: Linears) -> None:
    """Columns that are no multiple of a group, of a packed word or of a mask."""
    for form in dict.fromkeys(part.formats.values()):
        targets = [target for target, of in part.formats.items() if of is form]
        reached = {
            name: module
            for name, module in modules.items()
            if match_targets(name, module, list(part.formats))[0] in targets
        }
        if not reached:
            raise bad_input(f"{part.option}.targets: {targets} reaches no module that is left")
        size = form.weights.group_size or (form.activations.group_size if form.activations else 0)
        if size:
            _divides(reached, size, f"group size {size}", "; group_size=auto picks one that fits")
        step = _column_step(form)
        if step > 1:
            bits = form.weights.bits
            _divides(reached, step, f"the packing of {bits}-bit weights into {step} columns")
    if part.prunes:
        _divides(modules, MASK_WIDTH, "the width of a 2:4 mask, 4,")


def _column_step(form: Format) -> int:
    stored = covering(form.weights, form.activations)
    return max((each.column_step(form.weights) for each in stored), default=1)


def _divides(modules: Linears, size: int, what: str, hint: str = "") -> None:
    wrong = [
        f"{name} ({module.in_features} columns)"
        for name, module in modules.items()
        if module.in_features % size
    ]
    if wrong:
        raise bad_input(f"{what} does not divide {listed(wrong, LISTED)}{hint}")


def _check_head_groups(model: Any, recipe: RecipeConfig) -> None:
    size = HEAD_FORMATS[recipe.lm_head].group_size if recipe.lm_head else None
    if size and model.config.hidden_size % size:
        raise bad_input(
            f"lm_head={recipe.lm_head}: its groups of {size} do not divide the head's "
            f"{model.config.hidden_size} columns; use lm_head=int8"
        )
