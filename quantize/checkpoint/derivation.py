"""Verifies that a checkpoint was made from its source model's files.

Tensors that no step may change equal the source's, bit for bit. Tensors that a step may change
resemble it: each stored weight is dequantized and compared with the source's, and so are the two
models' next tokens. Everything is read from the files again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from compressed_tensors.utils import match_named_modules

from conf.files.json_files import read_object
from conf.formats import vptq
from conf.formats.quantization_config import KEY, read_quantization
from conf.models import CONFIG
from quantize.checkpoint.reload import mean_divergence
from quantize.checkpoint.tensors import checking_device
from quantize.models.headers import StoredTensors
from quantize.vptq.config import vector_shapes
from quantize.vptq.layer import VectorShape

# Measured on `tiny`: 0.85 with 2:4 pruning, 0.986 with 4 bit, above 0.999 with 8 bit. Unrelated
# weights are below 0.4, with fitted scales and 64 rows and columns.
LEAST_SIMILARITY = 0.5
# The divergence from the source's next token, over the divergence from the source's next token at
# another position: 0 for the same model, 1 for an unrelated one.
MOST_DIVERGENCE = 0.9
NEGLIGIBLE = 1e-3  # a divergence below this is never a fault
FIT_ROUNDS = 3  # rounds of fitting scales of rows and columns
PRUNED_SHARE = 0.5


@dataclass
class Derivation:
    """The result of the comparison. `faults` is empty if the checkpoint derives from the source."""

    unchanged: int = 0
    """Tensors that equal the source's bit for bit."""
    rescaled: int = 0
    """Norms and biases that SmoothQuant or AWQ scaled."""
    weights: int = 0
    """Weight matrices that were dequantized and compared with the source's."""
    pruned: int = 0
    """Those of them in which at least half of the numbers are zero."""
    not_compared: int = 0
    """Tensors that the source stores in another layout."""
    similarity: float = 1.0
    """The lowest cosine between a weight matrix and the source's, after removing steps' scales."""
    least_similar: str = ""
    """The matrix with that cosine."""
    divergence: float = 0.0
    """Kullback-Leibler divergence of the next token from the source model's."""
    unrelated: float = 0.0
    """The same against the source model's next token at other positions."""
    faults: list[str] = field(default_factory=list)
    """Each names a tensor and what is wrong with it."""


def compare_tensors(
    source: Path, checkpoint: Path, model: Any, rescaled: set[str], pruned: set[str]
) -> Derivation:
    """Compares every parameter of a checkpoint with the source's. `model`: the architecture without
    weights; `rescaled`, `pruned`: modules that the recipe's steps may scale or prune."""
    derivation = Derivation()
    schemes = _schemes(checkpoint, model)
    with StoredTensors(source) as original, StoredTensors(checkpoint) as stored:
        for name, _ in model.named_parameters(remove_duplicate=False):
            module = name.rpartition(".")[0]
            source_name = _source_name(name, original, model)
            if name.endswith(".weight") and module in schemes:
                scheme = schemes[module]
                if isinstance(scheme, VectorShape):
                    weight = scheme.layer(_tensors_of(module, stored)).dequantize()
                else:
                    weight = _dequantized(module, scheme, stored)
            elif name in stored:
                weight = stored[name].to(checking_device())
            else:
                continue  # tied to another; `verify` reports missing tensors
            if source_name is None:
                derivation.not_compared += 1
                continue
            must_be_equal = module not in schemes and module not in rescaled | pruned
            source_weight = original[source_name].to(checking_device())
            _compare_tensor(
                derivation, name, weight, source_weight, must_be_equal, module in rescaled
            )
    return derivation


def _source_name(name: str, original: StoredTensors, model: Any) -> str | None:
    """The source's name for a parameter: some files omit the model's own prefix, and most omit a
    head that is tied to the embedding."""
    tied = model.all_tied_weights_keys.get(name, name)
    for candidate in (name, name.removeprefix(f"{model.base_model_prefix}."), tied):
        if candidate in original:
            return str(candidate)
    return None


def _schemes(checkpoint: Path, model: Any) -> Mapping[str, QuantizationScheme | VectorShape]:
    """The scheme of each quantized module, from config.json."""
    content = read_object(checkpoint / CONFIG).get(KEY)
    if not content:
        return {}
    quantization = read_quantization(content, KEY)
    if quantization is not None and quantization.method == vptq.METHOD:
        return vector_shapes(quantization, model)
    config = QuantizationConfig.model_validate(content)
    schemes: dict[str, QuantizationScheme] = {}
    for scheme in config.config_groups.values():
        scheme.format = scheme.format or config.format
        for name, module in match_named_modules(model, scheme.targets, config.ignore or []):
            if isinstance(module, torch.nn.Linear) and scheme.weights is not None:
                schemes[name] = scheme
    return schemes


def _dequantized(module: str, scheme: QuantizationScheme, stored: StoredTensors) -> torch.Tensor:
    """The weight, dequantized from the checkpoint's codes and scales."""
    tensors = _tensors_of(module, stored)
    compressor = BaseCompressor.get_value_from_registry(
        getattr(scheme.format, "value", scheme.format)
    )
    weight: torch.Tensor = compressor.decompress(tensors, scheme)["weight"]
    return weight


def _tensors_of(module: str, stored: StoredTensors) -> dict[str, torch.Tensor]:
    """The tensors that a module's weight is stored in, by the last parts of their names."""
    prefix = f"{module}."
    tensors = {
        name.removeprefix(prefix): stored[name].to(checking_device())
        for name in stored.under(prefix)
    }
    tensors.pop("bias", None)
    return tensors


def _compare_tensor(
    derivation: Derivation,
    name: str,
    weight: torch.Tensor,
    original: torch.Tensor,
    must_be_equal: bool,
    rescaled: bool,
) -> None:
    if weight.shape != original.shape:
        derivation.faults.append(f"{name} has the shape {tuple(weight.shape)}, not the source's")
    elif torch.equal(weight, original.to(weight.dtype)):
        derivation.unchanged += 1
    elif must_be_equal:
        derivation.faults.append(f"{name} is not the source's, and no step may change it")
    elif weight.dim() == 1:
        derivation.rescaled += 1
        if not _same_signs(weight, original):
            derivation.faults.append(f"{name} is not the source's scaled by positive numbers")
    else:
        _compare_matrix(derivation, name, weight.float(), original.float(), rescaled)


def _same_signs(weight: torch.Tensor, original: torch.Tensor) -> bool:
    return bool((weight.float().sign() * original.float().sign() >= 0).all())


def _compare_matrix(
    derivation: Derivation, name: str, weight: torch.Tensor, original: torch.Tensor, rescaled: bool
) -> None:
    derivation.weights += 1
    if float((weight == 0).float().mean()) >= PRUNED_SHARE:
        derivation.pruned += 1
    cosine = similarity(weight, original, rescaled)
    if cosine < derivation.similarity or not derivation.least_similar:
        derivation.similarity, derivation.least_similar = cosine, name
    if not cosine >= LEAST_SIMILARITY:
        derivation.faults.append(
            f"{name} does not derive from the source's weights (similarity {cosine:.2f}, "
            f"{LEAST_SIMILARITY} is the least)"
        )


def similarity(weight: torch.Tensor, original: torch.Tensor, rescaled: bool) -> float:
    """The cosine between two matrices. If steps may scale rows and columns, the best scales are
    fitted first."""
    if rescaled:
        for _ in range(FIT_ROUNDS):
            original = original * _scales(weight, original, dim=0)
            original = original * _scales(weight, original, dim=1)
    norm_product = weight.norm() * original.norm()
    return (
        float((weight * original).sum() / norm_product)
        if norm_product > 0
        else float(weight.equal(original))
    )


def _scales(weight: torch.Tensor, original: torch.Tensor, dim: int) -> torch.Tensor:
    squares = original.square().sum(dim, keepdim=True)
    return (weight * original).sum(dim, keepdim=True) / squares.clamp_min(1e-30)


def compare_answers(
    derivation: Derivation, original: torch.Tensor, quantized: torch.Tensor, pruned: bool = False
) -> None:
    """Compares the logits of both models on the probe. The limit is relative to the divergence
    between positions, so that it holds for sharp and for flat distributions. A pruned model's
    divergence is recorded but has no limit: with random weights pruning moves the next token almost
    as far (0.53 of it in `tiny`), and the weights themselves were compared."""
    derivation.divergence = mean_divergence(original, quantized)
    half = quantized.shape[1] // 2
    derivation.unrelated = mean_divergence(original, quantized.roll(half, dims=1))
    limit = max(NEGLIGIBLE, MOST_DIVERGENCE * derivation.unrelated)
    if not (derivation.divergence <= limit or (pruned and math.isfinite(derivation.divergence))):
        derivation.faults.append(
            f"its next tokens are unrelated to the source model's (divergence "
            f"{derivation.divergence:.3g}, {derivation.unrelated:.3g} for other positions)"
        )
