"""The transformers config of a listed architecture."""

from typing import Any

from transformers import AutoConfig

from conf.architecture import Architecture


def architecture_config(architecture: Architecture) -> Any:
    """The transformers config of an architecture, in its full dimensions."""
    fields = {
        key: value
        for key, value in vars(architecture).items()
        if key not in ("model_type", "rope_theta", "rope_scaling", "extra") and value is not None
    }
    if not architecture.num_experts:
        fields = {
            key: value for key, value in fields.items() if "expert" not in key and "moe" not in key
        }
    return AutoConfig.for_model(
        architecture.model_type,
        rope_parameters={
            "rope_type": "default",
            **(architecture.rope_scaling or {}),
            "rope_theta": architecture.rope_theta,
        },
        **fields,
        **architecture.extra,
    )
