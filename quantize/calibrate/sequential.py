"""Passes calibration text through a model layer by layer, once for each step of a recipe.

llm-compressor's own loop moves every activation to the host and back, and starts from the first
layer after a crash. This one keeps activations on the GPU while they fit, loads the next layer's
weights beforehand, skips the second pass through a layer after a pure rescaling, and saves finished
layers.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from compressed_tensors.offload import (
    disable_offloading,
    set_onload_device,
)
from compressed_tensors.utils import patch_attr
from llmcompressor.core import LifecycleCallbacks, active_session
from llmcompressor.modifiers.utils.hooks import HooksMixin
from llmcompressor.pipelines import CalibrationPipeline
from llmcompressor.pipelines.sequential.helpers import trace_subgraphs
from llmcompressor.utils.dev import get_main_device
from llmcompressor.utils.helpers import DisableQuantization, calibration_forward_context
from llmcompressor.utils.pytorch.module import infer_sequential_targets

from conf.errors import environment_failure
from quantize.calibrate.attention import fast_attention
from quantize.calibrate.elementwise.modules import fused_elementwise
from quantize.calibrate.expert_tokens import counted_tokens
from quantize.calibrate.last_input import LastInput
from quantize.calibrate.memory.activations import Activations, gpu_budget
from quantize.calibrate.memory.weights import LayerWeights
from quantize.calibrate.rescaling import round_norms, shared_passes
from quantize.calibrate.resume import Modules, WorkFolder, host_tensors
from quantize.calibrate.run_state import RUN
from quantize.calibrate.stages.blocks import BlockModules
from quantize.calibrate.stages.layer import StagedLayer
from quantize.calibrate.stages.search import BlockSearch, ModifierHooks
from quantize.models.experts import only_chosen_experts
from quantize.parallel.ranks import RANKS
from quantize.steps.base.step import Step

NAME = "quantline"


@CalibrationPipeline.register(NAME)
class LayerByLayer(CalibrationPipeline):  # type: ignore[misc]
    """Gives each modifier its own passes through the model, in the recipe's order."""

    @staticmethod
    def __call__(model: torch.nn.Module, dataloader: Any, dataset_args: Any) -> None:
        recipe = active_session().lifecycle.recipe
        modifiers = recipe.modifiers
        with patch_attr(recipe, "modifiers", None):
            steps = RUN.get().steps
            by_name = {step.name: modifier for modifier, step in zip(modifiers, steps, strict=True)}
            joined: list[tuple[Any, Step[Any]]] = []
            for number, (modifier, step) in enumerate(zip(modifiers, steps, strict=True)):
                later = RUN.get().joined.get(step.name)
                if later is not None and step.can_join(modifier, by_name[later]):
                    joined += [(modifier, step)] if step.joins_with_modifier else []
                    continue
                recipe.modifiers = [*(other for other, _ in joined), modifier]
                if modifier.requires_calibration_data and dataloader is not None:
                    _Passes(model, dataloader, dataset_args, modifier, number, step, joined).run()
                    joined = []
                else:
                    CalibrationPipeline.from_modifiers([modifier])(model, dataloader, dataset_args)


class _Passes:
    """The passes of one step through the layers."""

    def __init__(
        self,
        model: torch.nn.Module,
        dataloader: Any,
        dataset_args: Any,
        modifier: Any,
        number: int,
        step: Step[Any],
        joined: list[tuple[Any, Step[Any]]],
    ) -> None:
        self.joined = joined
        self.model, self.dataloader, self.dataset_args = model, dataloader, dataset_args
        self.modifier, self.number, self.step = modifier, number, step
        self.state = RUN.get()
        self.names = {module: name for name, module in model.named_modules()}
        self.layers_count = 0

    def run(self) -> None:
        model, session = self.model, active_session()
        device = get_main_device()
        set_onload_device(model, device)
        targets = infer_sequential_targets(model, self.dataset_args.sequential_targets)
        example_batch = next(iter(self.dataloader))
        subgraphs = trace_subgraphs(
            model, example_batch, targets, self.dataset_args.tracing_ignore, 1
        )
        self.layers_count = len(subgraphs)
        task = self.state.bars.add_task(self.step.name, total=len(subgraphs))
        LifecycleCallbacks.calibration_start()
        layers = [subgraph.submodules(model) for subgraph in subgraphs]
        modifiers = [modifier for modifier, _ in self.joined]
        self.hooks = ModifierHooks([*modifiers, self.modifier])
        self.search = BlockSearch(layers, self.hooks)
        loaded_weights = LayerWeights.of(layers, device, model.get_output_embeddings())
        with (
            calibration_forward_context(model),
            fast_attention(model, self.dataloader),
            shared_passes(self.state.stored_as, is_shared=bool(self.joined)),
            DisableQuantization(model),
            fused_elementwise(model, device),  # compares outputs: nothing may be rounded
            loaded_weights,
        ):
            budget = gpu_budget(model, self.step, self.dataloader, device)
            activations = Activations.of(self.dataloader, device, budget)
            session.state.loss_masks = None
            session.state.sequential_prefetch = False
            finished_layers = RANKS.get().of_first(self._finished_layers(subgraphs))
            self.state.resumed_layers += finished_layers
            for layer, subgraph in enumerate(subgraphs):
                start = time.perf_counter()
                with (
                    disable_offloading(),
                    loaded_weights.of_layer(layer),
                    _named_out_of_memory(self.step.name, layer, len(subgraphs)),
                ):
                    self._run_layer(
                        layer, subgraph, activations, is_resumed=layer < finished_layers
                    )
                if layer >= finished_layers:
                    if not self.step.in_one_pass:
                        self._save_layer(layer, subgraph, loaded_weights.copied_back)
                    self.state.layer_seconds[self.step.name].append(time.perf_counter() - start)
                self.state.bars.update(
                    task,
                    completed=layer + 1,
                    description=self.step.name
                    + self.state.error_text(self._modules(subgraph), self.step.shows_error_as),
                )
            loaded_weights.copied_back.result()
            self.state.writer.flush()  # from here on the weights may change
            LifecycleCallbacks.calibration_end()
        for modifier, step in (*self.joined, (self.modifier, self.step)):
            scaled = step.scaled(modifier)
            if scaled:
                self.state.record_scaled(step.name, scaled, self.names)
                round_norms(self.model, self.state.stored_as)
        self._save_all_layers(subgraphs)

    def _run_layer(self, layer: int, subgraph: Any, activations: Any, is_resumed: bool) -> None:
        if is_resumed:
            assert self.state.work is not None
            self.state.restore_notes(
                self.state.work.load(self.number, layer, self._modules(subgraph))
            )
            outputs = self._outputs(subgraph, activations)
        elif self.step.in_one_pass:
            with_hooks = self._outputs(subgraph, activations, LastInput([]))
            self._pass_on(layer, subgraph, activations, with_hooks)
            LifecycleCallbacks.sequential_epoch_end(subgraph.submodules(self.model))
            return
        else:
            outputs = self._calibrated(subgraph, activations)
            self.state.record_fallbacks(self.step.fallbacks(self.modifier))
        if layer < self.layers_count - 1:  # nobody reads the last layer's outputs
            self._pass_on(layer, subgraph, activations, outputs)

    def _calibrated(self, subgraph: Any, activations: Any) -> Iterator[tuple[int, Any]]:
        """Changes a layer's weights; its outputs from then on."""
        blocks = self._blocks(subgraph, activations)
        if blocks:
            staged = StagedLayer(
                blocks,
                partial(subgraph.forward, self.model),
                subgraph.input_names,
                activations,
                self.hooks,
            )
            staged.calibrate(LifecycleCallbacks.sequential_epoch_end)
            return staged.outputs()
        head = self.model.get_output_embeddings()  # llm-compressor itself leaves out its product
        modules = [module for module in subgraph.submodules(self.model) if module is not head]
        last_input = LastInput(modules if self.step.reads_inputs else [])
        for _ in self._outputs(subgraph, activations, last_input):
            pass
        LifecycleCallbacks.sequential_epoch_end(subgraph.submodules(self.model))
        return self._outputs(subgraph, activations)

    def _blocks(self, subgraph: Any, activations: Any) -> list[BlockModules]:
        """The blocks of a layer that is calibrated in stages."""

        def run_layer() -> None:
            with closing(activations.iter(subgraph.input_names)) as batches:
                subgraph.forward(self.model, **next(batches))

        if not self.step.reads_inputs:
            return []
        return self.search.blocks(subgraph.submodules(self.model, recurse=False), run_layer)

    def _save_layer(
        self, layer: int, subgraph: Any, copied_back: Future[None] | None = None
    ) -> None:
        """Queues the layer for writing. `copied_back`: from when on its tensors are on the host."""
        work = self.state.work
        if work is None:
            return
        modules = self._modules(subgraph)
        tensors, notes = host_tensors(modules), self.state.notes_of(modules)

        def write() -> None:
            if copied_back is not None:
                copied_back.result()
            work.write(self.number, layer, tensors, notes)

        self.state.writer.submit(write)

    def _outputs(
        self, subgraph: Any, activations: Any, last_input: LastInput | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Runs every batch through the layer: its number and output. `last_input`: where a pass in
        which hooks read ends; none: they do not read. Only passes that they read count the tokens
        of experts: each layer has one, for each step."""
        state = active_session().state
        counted = counted_tokens(self._modules(subgraph), self.state.expert_tokens)
        with _without_hooks() if last_input is None else counted:
            for number, inputs in enumerate(activations.iter(subgraph.input_names)):
                state.current_batch_idx = number
                with nullcontext() if last_input is None else last_input.batch():
                    outputs = subgraph.forward(self.model, **inputs)
                yield number, outputs

    def _pass_on(
        self, layer: int, subgraph: Any, activations: Any, outputs: Iterator[tuple[int, Any]]
    ) -> None:
        """Makes the outputs the next layer's inputs."""
        for number, values in outputs:
            if layer < self.layers_count - 1:
                activations.update(number, values)
                activations.delete(number, subgraph.consumed_names)

    def _modules(self, subgraph: Any) -> Modules:
        """The layer's modules by name, without temporary observers, which hold nothing to save."""
        submodules = subgraph.submodules(self.model)
        return {self.names[module]: module for module in submodules if module in self.names}

    def _finished_layers(self, subgraphs: list[Any]) -> int:
        """How many layers, from the first on, an earlier run took through this step."""
        work = self.state.work
        if work is None or not RANKS.get().is_first:  # the first rank's answer counts for all
            return 0
        count = 0
        while count < len(subgraphs) and work.has(self.number, count):
            if not work.fits(self.number, count, self._modules(subgraphs[count])):
                return self._restart_from(count, work)
            count += 1
        return count if not self.step.in_one_pass or count == len(subgraphs) else 0

    def _restart_from(self, layer: int, work: WorkFolder) -> int:
        """The number of layers to resume when a saved layer cannot be read. With several steps,
        earlier layers may hold the state of a later step, which the first step must not see: all
        layers start over."""
        if self.state.resumed_layers:
            raise environment_failure(
                f"{work.folder}: layer {layer} changed during this run; run it again"
            )
        has_several_steps = len(self.state.steps) > 1
        if has_several_steps:
            work.start_over()
        return 0 if has_several_steps or self.step.in_one_pass else layer

    def _save_all_layers(self, subgraphs: list[Any]) -> None:
        if self.state.work is None or not self.step.in_one_pass:
            return
        for layer, subgraph in enumerate(subgraphs):
            if not self.state.work.has(self.number, layer):
                self._save_layer(layer, subgraph)
        self.state.writer.flush()


@contextmanager
def _without_hooks() -> Iterator[None]:
    with HooksMixin.disable_hooks(), only_chosen_experts():
        yield


@contextmanager
def _named_out_of_memory(step: str, layer: int, layers: int) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise environment_failure(
            f"{step}: out of GPU memory in layer {layer + 1} of {layers}; lower batch_size, "
            "calibration.samples or calibration.length"
        ) from error
