"""Made-up weights in vLLM. The process that loads them imports this by the name of its class."""

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.utils import get_layer_tensors

from conf.models import MADE_UP
from evaluate.engines.random_weights import fill
from evaluate.engines.vllm_log import SAID_OF_WEIGHTS

SEED = 1


@register_model_loader("dummy")
class RandomLoader(DummyModelLoader):  # type: ignore[misc]
    """In the place of vLLM's own, with weights that are spread as a trained model's are."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load_weights(self, model: Any, model_config: Any) -> None:
        made_up = getattr(model_config.hf_config, MADE_UP)
        random = torch.Generator(next(model.parameters()).device).manual_seed(SEED)
        for layer in model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():  # rounded as it is loaded, with scales that fit
                self._process_online_quant_layer(layer, info)
                continue
            left = layer._non_persistent_buffers_set
            tensors = {n: t for n, t in get_layer_tensors(layer).items() if n not in left}
            fill(tensors, made_up["sparse"] and isinstance(layer, LinearBase), random)
        print(SAID_OF_WEIGHTS, flush=True)  # whatever level vLLM logs at


class RandomWeights:
    """Adds nothing to vLLM's worker: importing it is what counts."""
