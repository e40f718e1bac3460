"""AWQ's search for scales with few activations in memory; llm-compressor does the rest of AWQ.

llm-compressor keeps the inputs of every batch and runs them through a layer for each scale that it
tries. Here, where the scaled layer's own output is compared, X'X replaces the inputs: the error
that a change D of the weights makes in the output is tr(D X'X D'), over all batches and without a
forward pass. Where attention or an MLP follows, a few sequences run through it.
"""

import contextlib
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from compressed_tensors.modeling.kvcache import QuantizedKVCache
from compressed_tensors.utils import patch_attr
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.awq import base as awq
from llmcompressor.modifiers.transform.awq.mappings import ResolvedMapping
from llmcompressor.pipelines.cache import IntermediatesCache
from llmcompressor.utils.helpers import calibration_forward_context
from torch.nn import Module
from torch.nn.functional import mse_loss

from quantize.calibrate.awq.mappings import (
    InputSizes,
    candidate_scales,
    clippable_layers,
    compares_own_output,
    own_mappings,
    quantized_layers,
)
from quantize.calibrate.awq.rounding import (
    Weights,
    clip,
    diagonal_blocks,
    minmax_observers,
    rounded,
)
from quantize.calibrate.awq.sample import Arguments, Sample
from quantize.calibrate.solver.products import SharedProducts, output_energy
from quantize.models.experts import only_chosen_experts
from quantize.parallel.ranks import RANKS
from quantize.parallel.shards import SHARDS, sum_of_shards

Loss = Callable[[Weights], torch.Tensor]
"""The squared error of an output when the layers have these weights."""


@contextlib.contextmanager
def library_search() -> Iterator[None]:
    """llm-compressor's own search. It pins memory even where there is no accelerator."""
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(_recorded_attention())
        contexts.enter_context(own_mappings())
        if not torch.accelerator.is_available():
            contexts.enter_context(patch_attr(IntermediatesCache, "pin_memory", lambda *_: None))
        yield


@contextlib.contextmanager
def gram_search(sequences: int, clips: bool) -> Iterator[None]:
    """Our search in llm-compressor's AWQ. `sequences`: the most that run through attention or an
    MLP; `clips`: clips weights after the scales are applied."""
    search = _Search(sequences, clips)
    library_apply = AWQModifier._apply_smoothing
    replacements = {
        "_setup_activation_cache_hooks": lambda modifier: search.register_hooks(modifier),
        "_apply_smoothing": lambda modifier, model: search.apply(modifier, model, library_apply),
        "_run_samples": lambda modifier, module: search.outputs(modifier, module),
        "_compute_best_scale": lambda *arguments: search.best_scale(*arguments),
    }
    with contextlib.ExitStack() as contexts:
        contexts.enter_context(_recorded_attention())
        contexts.enter_context(own_mappings())
        for name, replacement in replacements.items():
            contexts.enter_context(patch_attr(AWQModifier, name, replacement))
        yield


@contextlib.contextmanager
def _recorded_attention() -> Iterator[None]:
    """Runs a parent with the attention with which its inputs were recorded. llm-compressor
    switches to eager attention for these runs; without a mask, which SDPA does not need, eager
    attention would look ahead."""

    @contextlib.contextmanager
    def keeping_attention(model: Any) -> Iterator[None]:
        config = getattr(model, "config", None)
        with contextlib.ExitStack() as contexts:
            implementation = getattr(config, "_attn_implementation", None)
            contexts.enter_context(calibration_forward_context(model))
            if implementation is not None:
                contexts.enter_context(patch_attr(config, "_attn_implementation", implementation))
            yield

    with patch_attr(awq, "calibration_forward_context", keeping_attention):
        yield


class _Search:
    """What the search needs of a layer's inputs."""

    def __init__(self, sequences: int, clips: bool) -> None:
        self._sequences, self._clips = sequences, clips
        self._products = SharedProducts()
        self._grams: Weights = {}
        """X'X of each linear layer whose products were summed up."""
        self._sizes = InputSizes()
        self._samples: dict[Module, dict[int, Sample]] = {}
        """Inputs of the parents that are not one linear layer, by shard of the text."""
        self._runs: dict[Module, list[list[Arguments]]] = {}
        """The same while the scales are searched, as batches of each shard."""
        self._names: dict[Module, list[str]] = defaultdict(list)
        """The names of a parent's mappings."""
        self._chosen: list[tuple[ResolvedMapping, torch.Tensor]] = []
        """The scales of this layer's mappings."""

    def register_hooks(self, modifier: Any) -> None:
        """Replaces `_setup_activation_cache_hooks`."""
        for mapping in modifier._resolved_mappings:
            parent = mapping.parent
            observed = mapping.activation_hook_target or mapping.balance_layers[0]
            hook = partial(self._sizes.add, mapping.smooth_name)
            modifier.register_hook(observed, hook, "forward_pre")
            for layer in self._layers_with_products(mapping):
                modifier.register_hook(layer, self._add_product, "forward_pre")
            if not compares_own_output(mapping) and parent not in self._samples:
                self._samples[parent] = {}
                modifier.register_hook(parent, self._add_sample, "forward_pre", with_kwargs=True)
            self._names[parent].append(mapping.smooth_name)
            # Stays empty; llm-compressor deletes it after the search.
            modifier._parent_args_cache[parent] = IntermediatesCache(None, None)

    def _layers_with_products(self, mapping: ResolvedMapping) -> list[Module]:
        clipped = clippable_layers(mapping) if self._clips else []
        return [mapping.parent] if compares_own_output(mapping) else clipped

    def _add_product(self, module: Module, args: tuple[Any, ...]) -> None:
        self._products.add(module, args[0])

    def _add_sample(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        shards = SHARDS.get()
        sample = self._samples[module].setdefault(
            shards.current(), Sample(max(1, self._sequences // shards.count))
        )
        # The pass fills this cache, and the search must not read it.
        sample.add(
            {
                name: None if isinstance(value, QuantizedKVCache) else value
                for name, value in arguments.items()
            }
        )

    def apply(
        self, modifier: Any, model: Module, library_apply: Callable[[Any, Module], None]
    ) -> None:
        """Replaces `_apply_smoothing`, which this calls."""
        for modules, gram in self._products.take():
            self._grams |= dict.fromkeys(modules, gram)
        modifier._smooth_activation_stats.update(self._sizes.take())
        for parent, samples in self._samples.items():
            self._runs[parent] = [list(sample.batches()) for sample in samples.values()]
            samples.clear()
        library_apply(modifier, model)
        if self._clips:
            for mapping, scales in self._chosen:
                self._clip(mapping, scales)
        self._grams.clear()
        self._runs.clear()
        self._chosen.clear()

    def outputs(self, modifier: Any, parent: Module) -> list[torch.Tensor]:
        """Replaces `_run_samples`. llm-compressor skips a mapping without outputs, or with one that
        is not finite. The weights and the sums of the inputs stand for a linear layer's outputs."""
        stats = modifier._smooth_activation_stats
        parent_stats = [stats[name] for name in self._names[parent] if name in stats]
        sums = [total for total, count in parent_stats if count]
        if not sums or not all(total.isfinite().all() for total in sums):
            return sums
        if parent not in self._samples:
            return [*sums, parent.weight]
        outputs = [_output(parent, run) for runs in self._runs[parent] for run in runs]
        return outputs if _are_finite_in_all_ranks(outputs) else [sums[0] * math.nan]

    def best_scale(
        self,
        modifier: Any,
        mapping: ResolvedMapping,
        outputs: list[torch.Tensor],
        weights: Weights,
    ) -> torch.Tensor:
        """Replaces `_compute_best_scale`."""
        layers = quantized_layers(mapping)
        loss: Loss = (
            partial(self._gram_loss, mapping.parent, weights)
            if compares_own_output(mapping)
            else partial(self._parent_loss, mapping.parent, outputs)
        )
        candidates = list(candidate_scales(modifier, mapping))
        losses = []
        with minmax_observers(layers, mapping.parent):
            for scales in candidates:
                values = rounded({layer: weights[layer] * scales for layer in layers})
                losses.append(loss({layer: value / scales for layer, value in values.items()}))
        errors = [value if math.isfinite(value) else math.inf for value in _numbers(losses)]
        best = RANKS.get().of_first(min(range(len(errors)), key=errors.__getitem__))
        if errors[best] == math.inf:
            raise RuntimeError(
                f"{mapping.parent_name}: its output is NaN or infinite at every scale that AWQ "
                f"tries for {mapping.smooth_name}"
            )
        modifier._error_metrics.append(
            {
                "layer_name": mapping.smooth_name,
                "parent_name": mapping.parent_name,
                "initial_error": errors[0],
                "best_error": errors[best],
                "reduction": errors[best] / errors[0] if errors[0] > 0 else 1.0,
            }
        )
        self._chosen.append((mapping, candidates[best]))
        return candidates[best]

    def _gram_loss(self, parent: Module, weights: Weights, values: Weights) -> torch.Tensor:
        if parent not in values:  # a layer that is not quantized has no error
            return torch.zeros((), device=weights[parent].device)
        return output_energy(values[parent].float() - weights[parent], self._grams[parent])

    def _parent_loss(
        self, parent: Module, outputs: list[torch.Tensor], values: Weights
    ) -> torch.Tensor:
        for layer, value in values.items():
            layer.weight.data = value.to(layer.weight.dtype)
        originals = iter(outputs)
        losses = []
        for runs in self._runs[parent]:
            total = torch.zeros((), device=outputs[0].device)
            for arguments in runs:
                changed = _output(parent, arguments)
                total += mse_loss(changed.float(), next(originals).float(), reduction="sum")
            losses.append(total)
        return sum_of_shards(losses)

    def _clip(self, mapping: ResolvedMapping, scales: torch.Tensor) -> None:
        blocks = {
            layer: diagonal_blocks(layer, self._grams[layer], scales)
            for layer in clippable_layers(mapping)
            if layer in self._grams
        }
        if blocks:
            clip(quantized_layers(mapping), mapping.parent, blocks)


def _numbers(losses: list[torch.Tensor]) -> list[float]:
    """The losses on the host, by one copy: a copy for each would stop the GPU each time."""
    numbers: list[float] = torch.stack(losses).tolist()
    return numbers


def _are_finite_in_all_ranks(outputs: list[torch.Tensor]) -> bool:
    """All ranks skip a mapping, or none. One process leaves the check to llm-compressor."""
    ranks = RANKS.get()
    if not ranks.are_several:
        return True
    return all(ranks.objects(all(bool(output.isfinite().all()) for output in outputs)))


def _output(parent: Module, arguments: dict[str, Any]) -> torch.Tensor:
    with only_chosen_experts():  # no hook reads, and a mixture's output is the same
        output = parent(**arguments)
    return output[0] if isinstance(output, tuple) else output
