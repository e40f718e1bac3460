"""Frees the memory of a model that is no longer needed."""

import gc

import torch


def release(model: torch.nn.Module) -> None:
    """Frees all tensors of the model, which cannot be used any more.

    To drop the last variable is not enough: llm-compressor's session keeps the model, and its
    tracing leaves a reference in the globals of the model's own Python module. The next model would
    then be loaded beside this one.
    """
    for module in model.modules():
        # Offloading puts a mapping of its own in place of these dictionaries.
        module.__dict__["_parameters"] = {}
        module.__dict__["_buffers"] = {}
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
