"""Loads VPTQ checkpoints by transformers, with the exact linear layer.

transformers itself loads them only with the package `vptq` and on a GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer

from conf.formats.quantization_config import KEY, read_quantization
from conf.formats.vptq import METHOD
from quantize.vptq.config import linear_groups
from quantize.vptq.linear import replace_linears


class ExactQuantizer(HfQuantizer):  # type: ignore[misc]
    """Puts our layers in the place of linear layers before weights are loaded."""

    requires_calibration = True

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        quantization = read_quantization(self.quantization_config.to_dict(), KEY)
        assert quantization is not None
        dtype = model.dtype if model.dtype.is_floating_point else torch.float32
        replace_linears(model, linear_groups(quantization, model), dtype)

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


@contextmanager
def exact_loading() -> Iterator[None]:
    """Makes transformers load VPTQ checkpoints with our layers."""
    previous = AUTO_QUANTIZER_MAPPING[METHOD]
    AUTO_QUANTIZER_MAPPING[METHOD] = ExactQuantizer
    try:
        yield
    finally:
        AUTO_QUANTIZER_MAPPING[METHOD] = previous
