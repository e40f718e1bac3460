"""Whether a recipe fits an architecture: which modules its patterns match, and their widths."""

import difflib
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from compressed_tensors.utils import match_named_modules, match_targets
from llmcompressor.modifiers import Modifier

from conf.errors import bad_input
from conf.formats.quant_args import QuantArgs
from conf.formats.registry import covering
from conf.formats.served import refusal
from conf.schema.ranges import MASK_WIDTH
from conf.schema.recipe import HEAD_FORMATS, RecipeConfig
from conf.schema.steps import Kind
from conf.terminal import listed
from quantize.models.mixtures import check_experts_layout, check_mixture, kept_patterns
from quantize.recipe_file import as_list, scheme_targets, to_quant_args
from quantize.steps.base.step import steps_named

Linears = dict[str, torch.nn.Linear]
GROUP_SIZES = (128, 64, 32)
LISTED = 5  # modules that a message names before it counts the rest
PATTERN_SECONDS = 5  # for one pattern on all names of a model; a sound one takes milliseconds
VECTORS_PER_ENTRY = 2  # at least, of a codebook


@dataclass(frozen=True, eq=False)
class Format:
    """The number formats of the modules of one target."""

    weights: QuantArgs
    activations: QuantArgs | None = None


@dataclass
class StepScope:
    """The modules that one step of a recipe changes, and how."""

    option: str
    """How messages name it: recipe, or the file and its modifier."""
    targets: list[str]
    ignore: list[str]
    formats: dict[str, Format] = field(default_factory=dict)
    """By target; empty for a step that does not change how weights are stored."""
    prunes: bool = False


def step_scopes(recipe: RecipeConfig) -> list[StepScope]:
    """The scope of a Quantline recipe: all its steps share one list of modules."""
    formats = {}
    if recipe.weights is not None:
        activations = recipe.activations.stored if recipe.activations else None
        formats = dict.fromkeys(recipe.targets, Format(recipe.weights.stored, activations))
    return [StepScope("recipe", recipe.targets, recipe.ignore, formats, recipe.is_sparse)]


def step_scopes_of_file(recipe: RecipeConfig, modifiers: list[Modifier]) -> list[StepScope]:
    """The scopes of an llm-compressor recipe: each modifier has its own targets and ignore list."""
    scopes = []
    for step, modifier in zip(steps_named(recipe.steps), modifiers, strict=True):
        option = f"{recipe.file}: {step.modifier_name}"
        ignore = as_list(getattr(modifier, "ignore", []))
        if step.kind is Kind.PRUNES:
            scopes.append(StepScope(option, as_list(modifier.targets), ignore, prunes=True))
        elif step.kind is Kind.ROUNDS:
            formats = {
                target: Format(
                    to_quant_args(scheme.weights),
                    to_quant_args(scheme.input_activations) if scheme.input_activations else None,
                )
                for target, scheme in scheme_targets(modifier).items()
            }
            scopes.append(StepScope(option, list(formats), ignore, formats))
        elif ignore:
            scopes.append(StepScope(option, [], ignore))
    return scopes


def check_fit(
    model: Any, recipe: RecipeConfig, name: str, scopes: list[StepScope] | None = None
) -> Linears:
    """Raises if the recipe does not fit the architecture; returns the modules that it changes."""
    scopes = scopes or step_scopes(recipe)
    modules: Linears = {}
    rounded: dict[str, str] = {}
    formats: dict[str, Format] = {}
    check_experts_layout(model, name)
    for scope in scopes:
        _check_patterns(model, scope)
        reached = dict(matching_linears(model, scope.targets, scope.ignore))
        if scope.targets and not reached:
            raise bad_input(
                f"{scope.option}: no linear layer of {type(model).__name__} is left: targets "
                f"{scope.targets} without ignore {scope.ignore}"
            )
        _check_head(model, recipe, scope, reached)
        for module_name, module in reached.items() if scope.formats else ():
            if module_name in rounded:
                raise bad_input(
                    f"{scope.option}: {module_name} is rounded by {rounded[module_name]} too"
                )
            rounded[module_name] = scope.option
            modules[module_name] = module
        formats |= _formats_of(scope, reached)
        _check_widths(scope, reached)
        _check_codebooks(scope, reached)
        modules |= reached
    number_types = {name: (each.weights, each.activations) for name, each in formats.items()}
    check_mixture(model, scopes[0].option, number_types)
    _check_head_groups(model, recipe)
    return modules


def _formats_of(scope: StepScope, modules: Linears) -> dict[str, Format]:
    """The format that the step rounds each module to; empty for a step that does not round."""
    targets = list(scope.formats)
    return {
        name: scope.formats[match_targets(name, module, targets)[0]]
        for name, module in modules.items()
        if targets
    }


def for_model(recipe: RecipeConfig, model: Any) -> RecipeConfig:
    """The recipe with the modules of this architecture that always stay in 16 bit."""
    kept = [pattern for pattern in kept_patterns(model) if pattern not in recipe.ignore]
    return replace(recipe, ignore=[*recipe.ignore, *kept]) if kept and not recipe.file else recipe


def fitting_group(model: Any, recipe: RecipeConfig, option: str = "group_size=auto") -> int:
    """The largest group size of the recipe's format that divides the columns of every module. The
    error names the option that asked for one."""
    assert recipe.weights is not None
    activations = recipe.activations.stored if recipe.activations else None
    sizes = _group_sizes(Format(recipe.weights.stored, activations))
    columns = {
        module.in_features for _, module in matching_linears(model, recipe.targets, recipe.ignore)
    }
    for size in sizes:
        if all(width % size == 0 for width in columns):
            return size
    tried, widths = (" and ".join(map(str, numbers)) for numbers in (sizes, sorted(columns)))
    raise bad_input(
        f"{option} tries groups of {tried} for recipe={recipe.name}: none divides {widths} columns"
    )


def _group_sizes(stored: Format) -> list[int]:
    """The group sizes that engines have for a format, the largest first."""
    own = stored.weights.group_size
    return [
        size
        for size in sorted({*GROUP_SIZES, own} if own else GROUP_SIZES, reverse=True)
        if refusal(replace(stored.weights, group_size=size), stored.activations) is None
    ]


def matching_linears(model: Any, targets: list[str], ignore: list[str]) -> list[tuple[str, Any]]:
    matches = match_named_modules(model, targets, ignore)
    return [(name, module) for name, module in matches if isinstance(module, torch.nn.Linear)]


# ---- patterns -----------------------------------------------------------------------------


def check_pattern_times(model: Any, option: str, patterns: list[str]) -> None:
    """Raises for a regular expression whose backtracking would take too long."""
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
    """Stops a regular expression by a signal: Python's `re` has no time limit of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError

    previous_handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)


def _check_patterns(model: Any, scope: StepScope) -> None:
    check_pattern_times(model, scope.option, [*scope.targets, *scope.ignore])
    names = [name for name, _ in model.named_modules() if name]
    for option, patterns in (("targets", scope.targets), ("ignore", scope.ignore)):
        for pattern in patterns:
            matches = [module for _, module in match_named_modules(model, [pattern])]
            if not matches:
                kinds = {type(module).__name__ for module in model.modules()}
                candidates = [*names, *kinds]
                suggestions = difflib.get_close_matches(
                    pattern.removeprefix("re:"), candidates, n=1
                )
                hint = f" Did you mean {suggestions[0]}?" if suggestions else ""
                raise bad_input(f"{scope.option}.{option}: '{pattern}' matches no module.{hint}")
            has_linear = any(isinstance(module, torch.nn.Linear) for module in matches)
            if option == "targets" and not has_linear:
                kind = type(matches[0]).__name__
                raise bad_input(
                    f"{scope.option}.targets: '{pattern}' matches no linear layer (only {kind}); "
                    "name linear layers, as Linear or re:.*_proj$"
                )


# ---- modules ------------------------------------------------------------------------------


def _check_head(model: Any, recipe: RecipeConfig, scope: StepScope, modules: Linears) -> None:
    if model.config.tie_word_embeddings and "lm_head" in modules and not recipe.lm_head:
        raise bad_input(
            f"{scope.option}.ignore: lm_head is the embedding in this model and would be quantized "
            "with it; leave it in ignore, or set lm_head=int8"
        )


def _check_widths(scope: StepScope, modules: Linears) -> None:
    """Raises if columns are not a multiple of the group size, the packed word or the mask."""
    formats = _formats_of(scope, modules)
    for stored_format in dict.fromkeys(scope.formats.values()):
        reached = {
            name: module for name, module in modules.items() if formats[name] is stored_format
        }
        if not reached:
            targets = [name for name, each in scope.formats.items() if each is stored_format]
            raise bad_input(f"{scope.option}.targets: {targets} matches no module outside ignore")
        size = stored_format.weights.group_size or (
            stored_format.activations.group_size if stored_format.activations else 0
        )
        if size:
            hint = (
                "; group_size=auto picks one that fits"
                if _another_fits(stored_format, reached)
                else ""
            )
            _check_divisible(reached, size, f"group size {size}", hint)
        step = _column_step(stored_format)
        if step > 1:
            bits = stored_format.weights.bits
            _check_divisible(
                reached, step, f"the packing of {bits}-bit weights into {step} columns"
            )
    if scope.prunes:
        _check_divisible(modules, MASK_WIDTH, "the width of a 2:4 mask, 4,")


def _another_fits(stored_format: Format, modules: Linears) -> bool:
    """Whether the format has a group size that divides the columns of these modules."""
    return stored_format.weights.group_size is not None and any(
        all(module.in_features % size == 0 for module in modules.values())
        for size in _group_sizes(stored_format)
    )


def _column_step(stored_format: Format) -> int:
    candidates = covering(stored_format.weights, stored_format.activations)
    return max(
        (candidate.column_step(stored_format.weights) for candidate in candidates), default=1
    )


def _check_divisible(modules: Linears, size: int, divisor: str, hint: str = "") -> None:
    misfits = [
        f"{name} ({module.in_features} columns)"
        for name, module in modules.items()
        if module.in_features % size
    ]
    if misfits:
        raise bad_input(f"{divisor} does not divide {listed(misfits, LISTED)}{hint}")


def _check_codebooks(scope: StepScope, modules: Linears) -> None:
    """Raises if a codebook has about as many entries as a module has vectors: it would hold the
    weights themselves."""
    for stored_format in dict.fromkeys(scope.formats.values()):
        books = stored_format.weights.codebooks
        for name, module in modules.items() if books is not None else ():
            assert books is not None
            vectors = module.in_features * (module.out_features // books.vector_length)
            entries = max(books.entries, books.residual_entries)
            most = max(2, 1 << max(0, (vectors // VECTORS_PER_ENTRY).bit_length() - 1))
            if entries > most:
                raise bad_input(
                    f"{scope.option}.weights.codebooks: {name} has {vectors:,} vectors, too few "
                    f"for {entries:,} entries; use at most {most:,} entries"
                )


def _check_head_groups(model: Any, recipe: RecipeConfig) -> None:
    size = HEAD_FORMATS[recipe.lm_head].group_size if recipe.lm_head else None
    if size and model.config.hidden_size % size:
        raise bad_input(
            f"lm_head={recipe.lm_head}: its groups of {size} do not divide the head's "
            f"{model.config.hidden_size} columns; use lm_head=int8"
        )
