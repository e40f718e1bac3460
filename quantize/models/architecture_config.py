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
    fields = {
        key: value
        for key, value in fields.items()
        if value or not ("expert" in key or "moe" in key)  # 0: the family has no such field
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
