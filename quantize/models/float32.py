"""Float32 for machines whose 16-bit products are slow."""

import torch
from compressed_tensors.quantization import QuantizationConfig
from transformers import PreTrainedModel

from conf.formats.nvfp4 import is_fp4
from conf.formats.quantization_config import KEY, read_quantization
from conf.hardware import cpu_has_bf16


def is_slow_in_bf16() -> bool:
    """Whether 16-bit products take many times as long here: a CPU without units for them."""
    return not torch.cuda.is_available() and not cpu_has_bf16()


def convert_to_float32(model: PreTrainedModel) -> None:
    """Converts all weights to float32. FP4 always unpacks to bf16, so it is unpacked first."""
    quantizer = getattr(model, "hf_quantizer", None)
    compressor = getattr(quantizer, "compressor", None)
    if compressor is not None and _has_fp4(compressor.quantization_config):
        compressor.decompress_model(model)
    for parameter in model.parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            parameter.data = parameter.data.float()


def _has_fp4(config: QuantizationConfig) -> bool:
    quantization = read_quantization(config.model_dump(mode="json"), KEY)
    groups = quantization.groups if quantization is not None else []
    return any(is_fp4(group.weights) for group in groups)
