"""Made-up weights in vLLM. The process that loads them imports this by the name of its class."""

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.utils import get_layer_tensors

from conf.formats.quantization_config import KEY, read_quantization
from conf.models import MADE_UP
from evaluate.measure.engines.random_weights import WeightSpreads, fill
from evaluate.measure.engines.vllm_log import SAID_OF_WEIGHTS


@register_model_loader("dummy")
class RandomLoader(DummyModelLoader):  # type: ignore[misc]
    """In the place of vLLM's own, with weights that are spread as a trained model's are."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load_weights(self, model: Any, model_config: Any) -> None:
        config = model_config.hf_config
        quantization = read_quantization(getattr(config, KEY, None), KEY)
        spreads = WeightSpreads(quantization, bool(getattr(config, MADE_UP, {}).get("sparse")))
        for layer in model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():  # rounded as it is loaded, from vLLM's numbers: scales fit them
                self._process_online_quant_layer(layer, info)
                continue
            left = layer._non_persistent_buffers_set
            tensors = {n: t for n, t in get_layer_tensors(layer).items() if n not in left}
            fill(tensors, spreads.of(tensors, isinstance(layer, LinearBase)))
        print(SAID_OF_WEIGHTS, flush=True)  # whatever level vLLM logs at


class RandomWeights:
    """Adds nothing to vLLM's worker: importing it is what counts."""
