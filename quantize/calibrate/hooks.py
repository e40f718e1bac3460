"""What replaces parts of llm-compressor's modifiers while a recipe runs.

The modifiers keep their options, schemes, observers and export. In GPTQ and SparseGPT two methods
are replaced: `calibrate_module`, which takes a module's input, and `compress_modules`, which
changes the weights. In SmoothQuant it is those that find ranges of activations and scale by them.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any

import torch
from compressed_tensors.offload import disable_offloading, update_offload_parameter
from compressed_tensors.utils import is_match, patch_attr
from llmcompressor.modifiers import Modifier
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.gptq.helpers import update_batch_qparams
from llmcompressor.modifiers.pruning.sparsegpt import SparseGPTModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from llmcompressor.modifiers.transform.smoothquant.base import SmoothQuantScale
from llmcompressor.utils.metric_logging import CompressionLogger

from quantize.calibrate.rescaling import SHARED, factor_between, probe, round_as_stored
from quantize.calibrate.solver.block import Pruning
from quantize.calibrate.solver.grid import Grid
from quantize.calibrate.solver.products import Modules, SharedProducts
from quantize.calibrate.solver.solve import output_errors, solve
from quantize.parallel.ranks import RANKS
from quantize.steps.base.changes import Errors


class ZerosKind(Enum):
    """What GPTQ does about zeros in the weights."""

    NONE = auto()
    KEPT = auto()
    """The weights are pruned and stay so."""
    CHOSEN = auto()
    """Two of four weights become zero while they are rounded."""


@dataclass(frozen=True)
class Zeros:
    """What GPTQ does about zeros, and in which modules zeros are chosen."""

    kind: ZerosKind = ZerosKind.NONE
    targets: list[str] = field(default_factory=list)
    ignore: list[str] = field(default_factory=list)

    def of(self, name: str, module: torch.nn.Module) -> ZerosKind:
        """Of one module: a head that is rounded by its own format is not pruned."""
        if self.kind is not ZerosKind.CHOSEN or is_match(name, module, self.targets, self.ignore):
            return self.kind
        return ZerosKind.NONE


@contextlib.contextmanager
def noted_errors(model: torch.nn.Module, errors: Errors) -> Iterator[None]:
    """Notes each module's error, by the name that it is logged under."""
    names = {module: name for name, module in model.named_modules()}

    def note(logger: Any, name: str | None = None, loss: float | None = None) -> None:
        if loss is not None:
            errors[names[logger.module]][str(name).lower()] = loss
        original_note(logger, name, loss)

    original_note = CompressionLogger.set_results
    with patch_attr(CompressionLogger, "set_results", note):
        yield


@contextlib.contextmanager
def gptq_solver(zeros: Zeros) -> Iterator[None]:
    """Our products and solver in GPTQ."""

    def change(modifier: Any, group: Modules, matrix: torch.Tensor) -> None:
        rescaling = SHARED.get()
        if rescaling is not None:
            rescaling.rescale(group, matrix)
        for modules in _of_one_format(group):
            _round(modifier, modules, matrix, zeros)

    with _solver(GPTQModifier, change):
        yield


@contextlib.contextmanager
def sparsegpt_solver() -> Iterator[None]:
    """Our products and solver in SparseGPT."""
    with _solver(SparseGPTModifier, _prune):
        yield


@contextlib.contextmanager
def _solver(
    modifier_class: type[Modifier], change: Callable[[Any, Modules, torch.Tensor], None]
) -> Iterator[None]:
    """Takes the modules' inputs, and changes the weights of those that share an input together."""
    products = SharedProducts()

    def calibrate_module(
        modifier: Any, module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: object
    ) -> None:
        products.add(module, args[0])

    def compress_modules(modifier: Any) -> None:
        with torch.no_grad(), disable_offloading():
            for group, matrix in products.take():
                change(modifier, group, matrix)

    with (
        patch_attr(modifier_class, "calibrate_module", calibrate_module),
        patch_attr(modifier_class, "compress_modules", compress_modules),
    ):
        yield


@contextlib.contextmanager
def shared_smoothing() -> Iterator[None]:
    """SmoothQuant that may share GPTQ's passes. Ranges of activations are found without the
    positions of the extremes, which takes much longer on a GPU."""

    def setup_scale_hooks(modifier: Any) -> None:
        for mapping in modifier.resolved_mappings_:
            widen = partial(_widen, modifier.scales_, mapping.smooth_name)
            modifier.register_hook(mapping.smooth_layer, widen, "forward")

    def apply_smoothing(modifier: Any, model: torch.nn.Module) -> None:
        _smooth(modifier, model, library_apply)

    library_apply = SmoothQuantModifier._apply_smoothing
    with (
        patch_attr(SmoothQuantModifier, "_setup_scale_hooks", setup_scale_hooks),
        patch_attr(SmoothQuantModifier, "_apply_smoothing", apply_smoothing),
    ):
        yield


def _smooth(
    modifier: Any, model: torch.nn.Module, library_apply: Callable[[Any, torch.nn.Module], None]
) -> None:
    _widen_by_other_ranks(modifier.scales_)
    rescaling = SHARED.get()
    if rescaling is None:
        library_apply(modifier, model)
        return
    mappings = [
        mapping
        for mapping in modifier.resolved_mappings_
        if mapping.smooth_name in modifier.scales_
    ]
    before = [probe(mapping.smooth_layer) for mapping in mappings]
    library_apply(modifier, model)
    for mapping, output in zip(mappings, before, strict=True):
        round_as_stored(mapping.smooth_layer, rescaling.stored_as)
        factor = factor_between(output, probe(mapping.smooth_layer))
        rescaling.factors |= dict.fromkeys(mapping.balance_layers, factor)


def _widen(
    ranges: dict[str, SmoothQuantScale], name: str, module: torch.nn.Module, args: Any, output: Any
) -> None:
    tokens = (output[0] if isinstance(output, tuple) else output).flatten(0, -2)
    lowest, highest = torch.aminmax(tokens, dim=0)
    if name in ranges:
        lowest = torch.minimum(lowest, ranges[name].min_channel_vals)
        highest = torch.maximum(highest, ranges[name].max_channel_vals)
    ranges[name] = SmoothQuantScale(min_channel_vals=lowest, max_channel_vals=highest)


def _widen_by_other_ranks(ranges: dict[str, SmoothQuantScale]) -> None:
    """Extremes do not depend on the order in which they are compared."""
    ranks = RANKS.get()
    if not ranks.are_several:
        return
    for name, scale in ranges.items():
        lowest = torch.stack(ranks.in_order(scale.min_channel_vals)).amin(0)
        highest = torch.stack(ranks.in_order(scale.max_channel_vals)).amax(0)
        ranges[name] = SmoothQuantScale(min_channel_vals=lowest, max_channel_vals=highest)


def _of_one_format(group: Modules) -> list[Modules]:
    """The modules of a group, those that are rounded alike together."""
    by_format: dict[str, Modules] = {}
    for module in group:
        key = module.quantization_scheme.weights.model_dump_json()
        by_format[key] = (*by_format.get(key, ()), module)
    return list(by_format.values())


def _round(modifier: Any, modules: Modules, matrix: torch.Tensor, zeros: Zeros) -> None:
    args = modules[0].quantization_scheme.weights
    qparams = [module.weight_observer.get_qparams() for module in modules]
    scales, zero_points, global_scales = (
        [parameters[name] for parameters in qparams]
        for name in ("scale", "zero_point", "global_scale")
    )
    grids = [
        Grid.of(args, module.weight.shape, *of_module)
        for module, *of_module in zip(modules, scales, zero_points, global_scales, strict=True)
    ]
    weights = torch.cat([module.weight.data for module in modules])
    kind = zeros.of(modifier._module_names[modules[0]], modules[0])
    pruning = Pruning(
        kept=weights != 0 if kind is ZerosKind.KEPT else None, choose=kind is ZerosKind.CHOSEN
    )
    solution = solve(
        weights,
        matrix,
        Grid.stacked(grids),
        pruning,
        act_order=bool(args.actorder),
        dampening=modifier.dampening_frac,
        block_size=modifier.block_size,
    )
    rounded = _by_module(modules, solution.weights)
    if solution.fell_back:
        modifier._rtn_fallback_module_names += [
            modifier._module_names[module] for module in modules
        ]
    log_errors("GPTQ", modules, _weights(modules), rounded, matrix)
    has_global_scale = global_scales[0] is not None
    update_batch_qparams(
        modules, rounded, scales, zero_points, global_scales if has_global_scale else None, args
    )
    modifier._num_compressed_modules += len(modules)


def _prune(modifier: Any, modules: Modules, matrix: torch.Tensor) -> None:
    weights = torch.cat([module.weight.data for module in modules])
    kept = weights != 0 if modifier.preserve_sparsity_mask else None
    solution = solve(
        weights,
        matrix,
        None,
        Pruning(kept, choose=True),
        act_order=False,
        dampening=modifier.dampening_frac,
        block_size=modifier.block_size,
    )
    pruned = _by_module(modules, solution.weights)
    log_errors("SGPT", modules, _weights(modules), pruned, matrix)
    for module, changed in zip(modules, pruned, strict=True):
        update_offload_parameter(module, "weight", changed.to(module.weight.dtype))


def _by_module(modules: Modules, stacked: torch.Tensor) -> list[torch.Tensor]:
    return list(stacked.split([len(module.weight) for module in modules]))


def _weights(modules: Modules) -> list[torch.Tensor]:
    return [module.weight.data for module in modules]


def log_errors(
    name: str,
    modules: Modules,
    originals: list[torch.Tensor],
    changed: list[torch.Tensor],
    matrix: torch.Tensor,
) -> None:
    """Logs the error of each module's output, which `noted_errors` notes. Not as a context, in
    which the logger would ask the GPU's driver for its free memory, for every module, while the GPU
    waits."""
    errors = output_errors(originals, changed, matrix)
    for module, error in zip(modules, errors, strict=True):
        CompressionLogger(module).set_results(name=name, loss=error)
