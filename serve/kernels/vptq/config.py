"""`quant_method: vptq` in vLLM: which layers are in codebooks. Others stay as they are.

vLLM's linear layers import the package that this is registered in, so they are imported late.
"""

from collections.abc import Mapping
from typing import Any

import torch
from vllm.model_executor.layers.quantization import (
    QUANTIZATION_METHODS,
    register_quantization_config,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from conf.formats.vptq import METHOD, ConfigFields, LayerFields, read_fields

EXPERTS = "experts"
LEAST_CAPABILITY = 75
"""Of a GPU, times ten: from there on vLLM itself runs."""


class VptqConfig(QuantizationConfig):  # type: ignore[misc]
    """The quantization config of a checkpoint, as vLLM asks for it."""

    def __init__(self, fields: ConfigFields) -> None:
        super().__init__()
        self.layers: Mapping[str, LayerFields] = dict(fields.config_for_layers)
        self.shared = dict(fields.shared_layer_config)
        """By the last part of a name."""

    def get_name(self) -> str:
        return METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return LEAST_CAPABILITY

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "VptqConfig":
        fields = read_fields(config)
        if not fields.config_for_layers and not fields.shared_layer_config:
            raise ValueError("quantization_config: config_for_layers names no layer")
        return cls(fields)

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        """Some models have other names in vLLM than in a checkpoint."""
        self.layers = hf_to_vllm_mapper.apply_dict(dict(self.layers))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """Raises ValueError for layers in codebooks that cannot be run."""
        from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

        if not isinstance(layer, LinearBase):
            self._check_is_plain(prefix)
            return None
        names = self._names(prefix)
        found = [self.fields_of(name) for name in names]
        if not any(found):
            return UnquantizedLinearMethod()
        from serve.kernels.vptq.method import NamedLayer, VptqLinearMethod

        named = []
        for name, fields in zip(names, found, strict=True):
            if fields is None:
                raise ValueError(
                    f"{name}: is not in codebooks, unlike other parts of {prefix}; vLLM merges "
                    "them, so either all of them are or none"
                )
            named.append(NamedLayer(name, fields))
        return VptqLinearMethod(prefix, named)

    def fields_of(self, name: str) -> LayerFields | None:
        """The codebooks of a layer; None where it has none."""
        return self.layers.get(name) or self.shared.get(name.rpartition(".")[2])

    def _names(self, prefix: str) -> list[str]:
        """The names in a checkpoint of a layer, which may be several layers that vLLM merges."""
        if self.fields_of(prefix) is not None:
            return [prefix]
        owner, dot, last = prefix.rpartition(".")
        parts = self.packed_modules_mapping.get(last) or [last]
        return [f"{owner}{dot}{part}" for part in parts]

    def _check_is_plain(self, prefix: str) -> None:
        """Refuses the head, embeddings and experts in codebooks."""
        last = prefix.rpartition(".")[2]
        inside = [name for name in self.layers if name.startswith(f"{prefix}.")]
        if self.fields_of(prefix) is not None or (EXPERTS in last and inside):
            name = inside[0] if inside else prefix
            raise ValueError(f"{name}: is in codebooks; in vLLM only linear layers can be")


def register() -> None:
    """Makes vLLM know the format, once in a process, unless it has one of that name by itself."""
    if METHOD not in QUANTIZATION_METHODS:
        register_quantization_config(METHOD)(VptqConfig)
