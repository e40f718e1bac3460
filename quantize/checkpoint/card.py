"""The model card that a checkpoint carries: what it is, how it was made, how to serve it."""

from conf.schema.mixed import prediction_lines
from conf.schema.package import quantization_bits
from quantize.checkpoint.manifest import Manifest
from quantize.checkpoint.manifest_parts import ModelClaim, RecipeClaim


def model_card(manifest: Manifest) -> str:
    recipe = manifest.recipe_config
    base = manifest.original.id or manifest.model
    header = [
        "---",
        f"base_model: {base}",
        *_license(manifest.original),
        *_library(recipe),
        "---",
    ]
    formats = [
        f"- {count} layers {number_format}"
        for number_format, count in manifest.proof.formats.items()
    ]
    lines = [
        *header,
        "",
        f"# {manifest.model}, {manifest.recipe}",
        "",
        recipe.description,
        f"When to use it: {recipe.when}" if recipe.when else "",
        f"What runs it: {recipe.hardware}" if recipe.hardware else "",
        "",
        "## What is in it",
        "",
        *formats,
        *choice_lines(recipe),
        f"- {manifest.proof.bytes / 1e6:.1f} MB of tensors, each proven after the save",
        "",
        "## How it was made",
        "",
        *_origin(manifest, base),
        f"- steps: {', then '.join(recipe.steps)}",
        _calibration_line(manifest),
        f"- on {manifest.device}, with "
        + ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "",
        "`quantline.json` holds the whole record, `recipe.yaml` the recipe for llm-compressor.",
        "",
        "## How to serve it",
        "",
        *_serving(recipe),
        "",
    ]
    return "\n".join(lines)


def choice_lines(recipe: RecipeClaim) -> list[str]:
    """What a recipe chose for each layer, if it did."""
    choice = recipe.choice
    if choice is None:
        return []
    counts = ", ".join(f"{len(group.modules)} {group.name}" for group in choice.groups)
    lines = [f"- {choice.bits:.3f} bits a weight of the layers: {counts}"]
    predicted = prediction_lines(choice.divergence, choice.recovery)
    return lines + [f"- {line}" for line in predicted]


def _license(original: ModelClaim) -> list[str]:
    package = original.dequantized_from
    return [f"license: {package.license.lower()}"] if package and package.license else []


def _origin(manifest: Manifest, base: str) -> list[str]:
    """The original, and a warning where it is not the vendor's 16-bit model."""
    package = manifest.original.dequantized_from
    weights = f"weights sha256 {manifest.model_sha256}"
    if package is None:
        return [f"- original: {base}, revision {manifest.original.revision}, {weights}"]
    name = package.quantization
    bits = f" of nominally {quantization_bits(name)} bits" if name else ""
    details = [name, f"sha256 {package.sha256}" if package.sha256 else None]
    shown_details = ", ".join(detail for detail in details if detail)
    return [
        f"- original: {base}, de-quantized to bf16 from a GGUF file{bits}"
        f"{f' ({shown_details})' if shown_details else ''}, {weights}",
        "- the original is not the vendor's 16-bit model: do not compare scores with those of that "
        "model. A recipe of few bits may lose less here than on 16-bit weights.",
    ]


def _library(recipe: RecipeClaim) -> list[str]:
    if _is_in_codebooks(recipe):
        return ["library_name: transformers", "tags: [vptq]"]
    return ["library_name: vllm", "tags: [compressed-tensors]"]


def _serving(recipe: RecipeClaim) -> list[str]:
    if _is_in_codebooks(recipe):
        return ["vLLM has no kernel for it. transformers loads it with the package `vptq`."]
    return ["```sh", "python -m serve checkpoint=.", "vllm serve .", "```"]


def _is_in_codebooks(recipe: RecipeClaim) -> bool:
    return recipe.weights is not None and recipe.weights.codebooks is not None


def _calibration_line(manifest: Manifest) -> str:
    if manifest.text is None:
        return "- no calibration text"
    counts, source = manifest.text.counts, manifest.text.source
    dataset = source.id or source.path or source.source
    return f"- calibrated on {counts.samples} samples, {counts.tokens:,} tokens of {dataset}"
