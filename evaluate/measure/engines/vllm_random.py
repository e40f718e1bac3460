"""Random weights in vLLM. vLLM's loading process imports this module by its class name."""

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.utils import get_layer_tensors

from conf.formats.quantization_config import KEY, read_quantization
from conf.models import MADE_UP, MadeUpWeights, made_up_weights
from evaluate.measure.engines.random_weights import WeightSpreads, fill
from evaluate.measure.engines.vllm_log import RANDOM_WEIGHTS_LINE


@register_model_loader("dummy")
class RandomLoader(DummyModelLoader):  # type: ignore[misc]
    """Replaces vLLM's dummy loader: weights are distributed like those of a trained model."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load_weights(self, model: Any, model_config: Any) -> None:
        config = model_config.hf_config
        quantization = read_quantization(getattr(config, KEY, None), KEY)
        made_up = made_up_weights(getattr(config, MADE_UP, None)) or MadeUpWeights()
        spreads = WeightSpreads(quantization, made_up.sparse)
        for layer in model.modules():
            info = get_layerwise_info(layer)
            if (
                info.can_load()
            ):  # quantized while loading, from vLLM's own values, which fit its scales
                self._process_online_quant_layer(layer, info)
                continue
            skipped_buffers = layer._non_persistent_buffers_set
            tensors = {
                n: t for n, t in get_layer_tensors(layer).items() if n not in skipped_buffers
            }
            fill(tensors, spreads.of(tensors, isinstance(layer, LinearBase)))
        print(RANDOM_WEIGHTS_LINE, flush=True)  # not logged, so that it shows at any log level


class RandomWeights:
    """Adds nothing to vLLM's worker. Importing this module registers the loader."""
