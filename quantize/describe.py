"""Describes a recipe's checkpoint without any weights.

Makes, for each recipe, a folder with the config and the tensor shapes
that a checkpoint would have, or reports why there can be none. An engine with dummy weights runs
the recipe's real kernels on it.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from filelock import FileLock
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from conf.compose import compose
from conf.errors import bad_input
from conf.files.json_files import JsonObject
from conf.files.write_whole import write_whole
from conf.formats.quant_args import QuantGroup
from conf.formats.quantization_config import KEY
from conf.formats.vptq import METHOD
from conf.models import CONFIG, MADE_UP, ORIGINAL, SHAPES, MadeUpWeights, shapes_folder
from conf.process.inside import Send
from conf.process.messages import Failure
from conf.schema.mixed import with_choice
from conf.schema.model import ModelConfig
from conf.schema.recipe import RecipeConfig
from quantize.command import COMMAND
from quantize.fit import check_fit, for_model, matching_linears
from quantize.mixed.choose import unmeasured_choice
from quantize.mixed.plan import check_layer_formats
from quantize.models.architecture_config import architecture_config
from quantize.models.load import empty_model
from quantize.models.mixtures import with_routers
from quantize.programs import Described, DescribeRequest
from quantize.steps.base.formats import formats
from quantize.vptq.linear import replace_linears, stored_config

TYPES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.int64: "I64",
}


def describe(model: ModelConfig, name: str) -> Path:
    """The folder of a recipe on a model; made on first use."""
    folder = shapes_folder(model, name)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():  # another process may have made it while we waited
            with write_whole(folder) as unfinished:
                unfinished.mkdir()
                _write_description(unfinished, model, name)
    return folder


def _write_description(folder: Path, model: ModelConfig, name: str) -> None:
    """Writes the config, the tensor shapes and a tokenizer."""
    if model.path:
        shutil.copy(Path(model.path).expanduser() / CONFIG, folder / CONFIG)
    else:
        assert model.architecture is not None
        config = architecture_config(model.architecture)
        config.dtype = torch.bfloat16
        config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
        config.save_pretrained(folder)
    empty = empty_model(folder, model.trust_remote_code).to(torch.bfloat16)
    made_up = MadeUpWeights()
    quantization: JsonObject = {}
    if name != ORIGINAL:
        recipe: RecipeConfig = compose(COMMAND, [f"recipe={name}"]).recipe
        if recipe.file:
            raise bad_input(
                f"recipes={name}: the result of a recipe.file is known only after running it"
            )
        recipe = for_model(recipe, empty)
        modules = check_fit(empty, recipe, str(model.name))
        if recipe.auto is not None:
            check_layer_formats(empty, recipe, str(model.name), modules)
            recipe = with_choice(recipe, unmeasured_choice(recipe, modules))
        made_up = MadeUpWeights(sparse=recipe.is_sparse)
        quantization = _quantize_empty(empty, recipe)
    is_tied = empty.config.tie_word_embeddings
    shapes = {
        key: [TYPES[tensor.dtype], list(tensor.shape)]
        for key, tensor in empty.state_dict().items()
        if not (is_tied and key == "lm_head.weight")
    }
    (folder / SHAPES).write_text(json.dumps(shapes))
    content = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(
        json.dumps(content | quantization | {MADE_UP: asdict(made_up)}, indent=2)
    )
    _write_tokenizer(folder, int(empty.config.vocab_size))


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Writes a tokenizer with one word for each token, so that a server can decode answers."""
    token_numbers = {f"w{number}": number for number in range(vocabulary)}
    tokenizer = Tokenizer(WordLevel(token_numbers, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "w1",
        "unk_token": "w0",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))


def _quantize_empty(model: Any, recipe: RecipeConfig) -> JsonObject:
    """Converts the empty model to the recipe's format; returns the entry for config.json."""
    if recipe.weights is None:
        return {}  # pruned weights keep their format
    if recipe.weights.codebooks is not None:
        group = QuantGroup(METHOD, recipe.weights.stored)
        linears = matching_linears(model, recipe.targets, recipe.ignore)
        replace_linears(model, {name: group for name, _ in linears}, torch.bfloat16)
        return {KEY: stored_config(model)}
    apply_quantization_config(model, QuantizationConfig(**formats(recipe)))
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    quantization = compressor.quantization_config.model_dump(mode="json")
    return {KEY: with_routers(quantization, model)}


def describe_all(request: DescribeRequest, send: Send[Described]) -> None:
    for name in request.recipes:
        try:
            describe(request.model, name)
            send(Described(name))
        except Exception as error:  # the other recipes are still described
            send(Described(name, Failure.of(error)))
