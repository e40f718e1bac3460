"""Shows that a checkpoint was made from its source model's files, not only from a model in memory.

What no step may change is the source's, bit for bit. What a step may change still resembles it:
each stored weight is dequantized and set against the source's, and the two models' next tokens are
compared. Everything is read from the files again.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from compressed_tensors.utils import match_named_modules

from conf.files.json_files import read_object
from conf.formats.quantization_config import KEY
from conf.models import CONFIG
from quantize.checkpoint.reload import mean_divergence
from quantize.models.headers import StoredTensors

# Measured on `tiny`: 0.85 with 2:4 pruning, 0.986 with 4 bit, above 0.999 with 8 bit. Weights that
# have nothing to do with each other are below 0.4, with fitted scales and 64 rows and columns.
LEAST_SIMILARITY = 0.5
# The divergence from the source's next token, over the divergence from the source's next token at
# another position: 0 for the same model, 1 for one that has nothing to do with the source.
MOST_DIVERGENCE = 0.9
NEGLIGIBLE = 1e-3  # a divergence that no choice of scale makes remarkable
FITS = 3  # rounds of fitting scales of rows and columns
PRUNED = 0.5


@dataclass
class Derivation:
    """What was found. `faults` is empty where the checkpoint derives from the source."""

    unchanged: int = 0
    """Tensors that are the source's bit for bit."""
    rescaled: int = 0
    """Norms and biases that SmoothQuant or AWQ scaled."""
    weights: int = 0
    """Weight matrices that were dequantized and set against the source's."""
    pruned: int = 0
    """Of these, the ones in which half of the numbers are zero."""
    not_compared: int = 0
    """Tensors that the source stores in another layout."""
    similarity: float = 1.0
    """The lowest cosine between a weight matrix and the source's, scales of steps taken out."""
    least_similar: str = ""
    """The matrix that has it."""
    divergence: float = 0.0
    """Kullback-Leibler divergence of the next token from the source model's."""
    unrelated: float = 0.0
    """The same against the source model's next token at other positions."""
    faults: list[str] = field(default_factory=list)
    """Each names a tensor and what is wrong with it."""


def compare_tensors(
    source: Path, checkpoint: Path, model: Any, rescaled: set[str], pruned: set[str]
) -> Derivation:
    """Sets every parameter of a checkpoint against the source's. `model`: the architecture without
    weights; `rescaled`, `pruned`: modules that the recipe's steps may scale or prune."""
    found = Derivation()
    schemes = _schemes(checkpoint, model)
    with StoredTensors(source) as original, StoredTensors(checkpoint) as stored:
        for name, _ in model.named_parameters(remove_duplicate=False):
            module = name.rpartition(".")[0]
            kept = _source_name(name, original, model)
            if name.endswith(".weight") and module in schemes:
                weight = _dequantized(module, schemes[module], stored)
            elif name in stored:
                weight = stored[name]
            else:
                continue  # tied to another; what is missing is verify's to say
            if kept is None:
                found.not_compared += 1
                continue
            exact = module not in schemes and module not in rescaled | pruned
            _compare(found, name, weight, original[kept], exact, module in rescaled)
    return found


def _source_name(name: str, original: StoredTensors, model: Any) -> str | None:
    """The source's name for a parameter: some files leave out the model's own prefix, and most a
    head that is tied to the embedding."""
    tied = model.all_tied_weights_keys.get(name, name)
    for candidate in (name, name.removeprefix(f"{model.base_model_prefix}."), tied):
        if candidate in original:
            return str(candidate)
    return None


def _schemes(checkpoint: Path, model: Any) -> dict[str, QuantizationScheme]:
    """How config.json says that each module is stored."""
    content = read_object(checkpoint / CONFIG).get(KEY)
    if not content:
        return {}
    config = QuantizationConfig.model_validate(content)
    schemes: dict[str, QuantizationScheme] = {}
    for scheme in config.config_groups.values():
        scheme.format = scheme.format or config.format
        for name, module in match_named_modules(model, scheme.targets, config.ignore or []):
            if isinstance(module, torch.nn.Linear) and scheme.weights is not None:
                schemes[name] = scheme
    return schemes


def _dequantized(module: str, scheme: QuantizationScheme, stored: StoredTensors) -> torch.Tensor:
    """The weight as the checkpoint's numbers and scales give it."""
    prefix = f"{module}."
    parts = {name.removeprefix(prefix): stored[name] for name in stored.under(prefix)}
    parts.pop("bias", None)
    compressor = BaseCompressor.get_value_from_registry(
        getattr(scheme.format, "value", scheme.format)
    )
    weight: torch.Tensor = compressor.decompress(parts, scheme)["weight"]
    return weight


def _compare(
    found: Derivation,
    name: str,
    weight: torch.Tensor,
    original: torch.Tensor,
    exact: bool,
    rescaled: bool,
) -> None:
    if weight.shape != original.shape:
        found.faults.append(f"{name} has the shape {tuple(weight.shape)}, not the source's")
    elif torch.equal(weight, original.to(weight.dtype)):
        found.unchanged += 1
    elif exact:
        found.faults.append(f"{name} is not the source's, and no step may change it")
    elif weight.dim() == 1:
        found.rescaled += 1
        if not _same_signs(weight, original):
            found.faults.append(f"{name} is not the source's scaled by positive numbers")
    else:
        _compare_matrix(found, name, weight.float(), original.float(), rescaled)


def _same_signs(weight: torch.Tensor, original: torch.Tensor) -> bool:
    return bool((weight.float().sign() * original.float().sign() >= 0).all())


def _compare_matrix(
    found: Derivation, name: str, weight: torch.Tensor, original: torch.Tensor, rescaled: bool
) -> None:
    found.weights += 1
    if float((weight == 0).float().mean()) >= PRUNED:
        found.pruned += 1
    cosine = similarity(weight, original, rescaled)
    if cosine < found.similarity or not found.least_similar:
        found.similarity, found.least_similar = cosine, name
    if not cosine >= LEAST_SIMILARITY:
        found.faults.append(
            f"{name} does not derive from the source's weights (similarity {cosine:.2f}, "
            f"{LEAST_SIMILARITY} is the least)"
        )


def similarity(weight: torch.Tensor, original: torch.Tensor, rescaled: bool) -> float:
    """The cosine between two matrices; where steps may scale rows and columns, after the scales
    are fitted that bring them closest."""
    if rescaled:
        for _ in range(FITS):
            original = original * _scales(weight, original, dim=0)
            original = original * _scales(weight, original, dim=1)
    norms = weight.norm() * original.norm()
    return float((weight * original).sum() / norms) if norms > 0 else float(weight.equal(original))


def _scales(weight: torch.Tensor, original: torch.Tensor, dim: int) -> torch.Tensor:
    squares = original.square().sum(dim, keepdim=True)
    return (weight * original).sum(dim, keepdim=True) / squares.clamp_min(1e-30)


def compare_answers(
    found: Derivation, original: torch.Tensor, quantized: torch.Tensor, pruned: bool = False
) -> None:
    """Sets the logits of both models on the probe against each other. The scale is the divergence
    between positions, so that it holds for sharp and for flat distributions. Pruning is recorded
    and not judged: in random weights it moves the next token almost as far (0.53 of it in `tiny`),
    and the weights themselves were compared."""
    found.divergence = mean_divergence(original, quantized)
    half = quantized.shape[1] // 2
    found.unrelated = mean_divergence(original, quantized.roll(half, dims=1))
    most = max(NEGLIGIBLE, MOST_DIVERGENCE * found.unrelated)
    if not (found.divergence <= most or (pruned and math.isfinite(found.divergence))):
        found.faults.append(
            f"its next tokens have nothing to do with the source model's (divergence "
            f"{found.divergence:.3g}, {found.unrelated:.3g} for other positions)"
        )
