"""Measures what the original model loses where layers are rounded to a format, without data.

A layer's damage is the divergence of the next token from the original's, with this layer alone
rounded to the coarsest format. In another format, it is scaled by the errors of the layer's output.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from compressed_tensors.utils import patch_attr
from llmcompressor.observers import Observer

from conf.schema.mixed import LayerFormat
from quantize.calibrate.batches import Tokens, batches
from quantize.mixed.merged import MergedLayer
from quantize.steps.base.formats import quantization_args

Formats = Mapping[torch.nn.Linear, LayerFormat]
INPUT_TOKENS = 256  # of each layer's input that are kept to compare outputs
BATCH = 8


class Original:
    """The original model on a few sequences: its logits, and what its layers read and give."""

    def __init__(self, model: Any, samples: list[Tokens], layers: list[MergedLayer]) -> None:
        self.model = model
        self.batches = [batch["input_ids"].to(model.device) for batch in batches(samples, BATCH)]
        self.blocks = _decoder_blocks(model)
        self.outputs: dict[torch.nn.Module, list[Any]] = {block: [] for block in self.blocks}
        """Of each decoder block, by batch."""
        modules = [module for layer in layers for module in layer.modules.values()]
        self.inputs: dict[torch.nn.Module, list[torch.Tensor]] = {module: [] for module in modules}
        """The first tokens of each module, by batch; none of an expert that no token visits."""
        with ExitStack() as hooks:
            for block in self.blocks:
                hooks.callback(block.register_forward_hook(self._keep_output).remove)
            for module in modules:
                hooks.callback(module.register_forward_hook(self._keep_input).remove)
            logits = [self._logits(batch) for batch in self.batches]
        self.likelihoods = [entry.softmax(-1) for entry in logits]
        """Of every next token, by batch."""
        self.entropies = [
            _cross_entropy(*entry) for entry in zip(self.likelihoods, logits, strict=True)
        ]

    def divergence(self, formats: Formats, first_block: int = 0) -> float:
        """The mean divergence of the next token with modules in these formats. `first_block`: the
        first decoder block that differs from the original; those before it are not run again."""
        total = 0.0
        with rounded(formats):
            for number, batch in enumerate(self.batches):
                with self._skipped(number, self.blocks[:first_block]):
                    logits = self._logits(batch)
                crossed = _cross_entropy(self.likelihoods[number], logits)
                total += float((crossed - self.entropies[number]).double().sum())
        tokens: int = sum(batch.numel() for batch in self.batches)
        return max(0.0, total / tokens)

    def output_error(self, layer: MergedLayer, layer_format: LayerFormat) -> float:
        """The squared error of the outputs of a layer's modules, relative to the outputs."""
        if layer_format.weights is None:
            return 0.0
        read = [module for module in layer.modules.values() if self.inputs[module]]
        errors = []
        with torch.no_grad():
            for module in read:
                inputs = torch.cat(self.inputs[module]).unsqueeze(0)
                output = torch.nn.functional.linear(inputs, module.weight).float()
                with rounded({module: layer_format}):
                    changed = module(inputs).float()
                if module.bias is not None:
                    output += module.bias
                errors.append(float((changed - output).square().sum() / output.square().sum()))
        return sum(errors) / max(1, len(errors))

    def block_of(self, layer: MergedLayer) -> int:
        """The number of the decoder block that holds a layer; 0 where none does."""
        modules = set(layer.modules.values())
        holding = (
            number for number, block in enumerate(self.blocks) if modules & {*block.modules()}
        )
        return next(holding, 0)

    def _logits(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.model(batch, use_cache=False).logits
        return logits.float()

    def _keep_output(self, block: torch.nn.Module, inputs: Any, output: Any) -> None:
        self.outputs[block].append(output)

    def _keep_input(
        self, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: Any
    ) -> None:
        kept = sum(map(len, self.inputs[module]))
        tokens = inputs[0].flatten(0, -2)[: max(0, INPUT_TOKENS - kept)]
        if len(tokens):
            self.inputs[module].append(tokens.clone())

    @contextmanager
    def _skipped(self, batch: int, blocks: list[torch.nn.Module]) -> Iterator[None]:
        """Decoder blocks that give the original's output without computing it."""
        with ExitStack() as patches:
            for block in blocks:
                patches.enter_context(
                    patch_attr(block, "forward", _giving(self.outputs[block][batch]))
                )
            yield


def _cross_entropy(likelihoods: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """At every position. The divergence is what it has above that of the original's own logits;
    computed so, it takes two passes over the vocabulary and not six."""
    return logits.logsumexp(-1) - (likelihoods * logits).sum(-1)


def _giving(output: Any) -> Callable[..., Any]:
    def forward(*_: object, **__: object) -> Any:
        return output

    return forward


def _decoder_blocks(model: Any) -> list[torch.nn.Module]:
    """The decoder layers; none where the model has no list of them."""
    layers = getattr(model.get_decoder(), "layers", None)
    return list(layers) if isinstance(layers, torch.nn.ModuleList) else []


@contextmanager
def rounded(formats: Formats) -> Iterator[None]:
    """Modules that multiply as if they were stored in these formats."""
    with ExitStack() as patches:
        for module, layer_format in formats.items():
            if layer_format.weights is not None:
                forward = partial(_rounded_product, module, layer_format)
                patches.enter_context(patch_attr(module, "forward", forward))
        yield


def _rounded_product(
    module: torch.nn.Linear, layer_format: LayerFormat, inputs: torch.Tensor
) -> torch.Tensor:
    assert layer_format.weights is not None
    weight = round_weight(module.weight, quantization_args(layer_format.weights))
    if layer_format.activations is not None:
        inputs = _round_tokens(inputs, quantization_args(layer_format.activations))
    return torch.nn.functional.linear(inputs, weight, module.bias)


def round_weight(weight: torch.Tensor, args: QuantizationArgs) -> torch.Tensor:
    """The weights, each rounded to the nearest value of the format."""
    observer = Observer.load_from_registry("memoryless_minmax", base_name="weight", args=args)
    qparams = observer(weight.data).get_qparams()
    rounded_weight: torch.Tensor = fake_quantize(
        weight.data,
        qparams["scale"],
        qparams["zero_point"],
        args,
        global_scale=qparams["global_scale"],
    )
    return rounded_weight


def _round_tokens(inputs: torch.Tensor, args: QuantizationArgs) -> torch.Tensor:
    scale, zero_point = compute_dynamic_scales_and_zp(inputs, args, None)
    rounded_inputs: torch.Tensor = fake_quantize(inputs, scale, zero_point, args)
    return rounded_inputs
