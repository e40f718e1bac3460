"""Which pairs of weights and activations an engine runs, as compressed-tensors stores them.

Read from vLLM 0.32's choice of schemes (`compressed_tensors.py`, `_get_scheme_from_parts`) and from
the formats that compressed-tensors 0.19 writes. What only lacks a kernel on one machine is allowed
here; `conf.formats.kernels` says that when a checkpoint is loaded.
"""

from dataclasses import dataclass

STATIC, DYNAMIC, LOCAL = "static", "dynamic", "local"
GROUP_STEP = 16  # the smallest tile of the weight-only kernels
BLOCKS = ([32, 32], [64, 64], [128, 128])
NVFP4_GROUP = 16


@dataclass(frozen=True)
class Stored:
    """How one kind of tensor is stored, in words that are the same for every kind of recipe."""

    type: str
    bits: int
    strategy: str
    group_size: int | None = None
    block_structure: list[int] | None = None
    symmetric: bool = True
    scales: str = STATIC
    """static: kept in the file; dynamic: computed from each token; local: both (NVFP4)."""
    scale_type: str | None = None
    """fp8, or another type's name; null for the model's own."""

    @property
    def is_nvfp4(self) -> bool:
        return (self.type, self.bits, self.strategy) == ("float", 4, "tensor_group")


@dataclass(frozen=True)
class Refusal:
    """The field that no engine runs, and why."""

    part: str
    """weights or activations."""
    field: str
    reason: str


def refusal(weights: Stored, activations: Stored | None) -> Refusal | None:
    """Why no engine runs this pair; nothing where one does."""
    found = _weights(weights, activations is None)
    if found is None and activations is not None:
        found = _activations(weights, activations)
    return found


def _weights(weights: Stored, alone: bool) -> Refusal | None:
    if weights.scales != STATIC:
        return _of_weights("dynamic", "weights have static scales; use dynamic: false")
    if weights.type == "float":
        return _float_weights(weights, alone)
    if weights.scale_type is not None:
        return _of_weights("scale_type", "scales of int weights are in the model's own type")
    if alone:
        return _weight_only(weights)
    if weights.bits != 8:
        reason = "int weights with quantized activations have 8 bits; without activations 2 to 8"
        return _of_weights("bits", reason)
    if weights.strategy not in ("tensor", "channel"):
        reason = "INT8 kernels take a scale for each channel or tensor"
        return _of_weights("strategy", reason)
    if not weights.symmetric:
        return _of_weights("symmetric", "INT8 kernels take symmetric weights")
    return None


def _weight_only(weights: Stored) -> Refusal | None:
    if not 2 <= weights.bits <= 8:
        return _of_weights("bits", "weight-only kernels take int weights of 2 to 8 bits")
    if weights.strategy not in ("channel", "group"):
        reason = "weight-only kernels take a scale for each channel or group"
        return _of_weights("strategy", reason)
    if weights.group_size is not None and weights.group_size % GROUP_STEP:
        reason = f"weight-only kernels take groups that are multiples of {GROUP_STEP}, as 128"
        return _of_weights("group_size", reason)
    return None


def _float_weights(weights: Stored, alone: bool) -> Refusal | None:
    if not weights.symmetric:
        return _of_weights("symmetric", "float formats have no zero point; use symmetric: true")
    if weights.bits == 4:
        return _nvfp4("weights", weights)
    if weights.bits != 8:
        return _of_weights("bits", "float weights have 8 bits (FP8) or 4 (NVFP4)")
    if weights.strategy not in ("tensor", "channel", "block"):
        reason = "FP8 kernels take a scale for each channel, tensor or block"
        return _of_weights("strategy", reason)
    if weights.scale_type is not None:
        return _of_weights("scale_type", "scales of FP8 weights are in the model's own type")
    if weights.strategy == "block" and weights.block_structure not in BLOCKS[2 if alone else 0 :]:
        reason = "FP8 block kernels take blocks of 128 x 128"
        return _of_weights("block_structure", reason if alone else f"{reason}, 64 x 64 or 32 x 32")
    return None


def _nvfp4(part: str, stored: Stored) -> Refusal | None:
    if stored.strategy != "tensor_group":
        return Refusal(part, "strategy", "4-bit floats are NVFP4, with strategy tensor_group")
    if stored.group_size != NVFP4_GROUP:
        return Refusal(part, "group_size", f"NVFP4 has groups of {NVFP4_GROUP}")
    if stored.scale_type != "fp8":
        return Refusal(part, "scale_type", "NVFP4 has fp8 scales")
    return None


def _activations(weights: Stored, stored: Stored) -> Refusal | None:
    if stored.type != weights.type:
        reason = f"no kernel multiplies {weights.type} weights with {stored.type} activations"
        return Refusal("activations", "type", reason)
    if stored.bits != weights.bits:
        reason = f"activations have as many bits as their weights, {weights.bits}"
        return Refusal("activations", "bits", reason)
    if weights.is_nvfp4:
        return _nvfp4_activations(stored)
    if stored.scale_type is not None:
        return Refusal("activations", "scale_type", "NVFP4 alone has scales of their own type")
    if stored.type == "float" and not stored.symmetric:
        reason = "float formats have no zero point; use symmetric: true"
        return Refusal("activations", "symmetric", reason)
    if weights.strategy == "block":
        return _block_activations(weights, stored)
    ways = {("token", DYNAMIC), ("tensor", STATIC)}
    if stored.type == "float":
        ways.add(("tensor", DYNAMIC))
    if (stored.strategy, stored.scales) not in ways:
        reason = (
            "activations go with strategy token and dynamic: true, or tensor and dynamic: false"
        )
        wrong = "strategy" if stored.strategy not in ("token", "tensor") else "dynamic"
        return Refusal("activations", wrong, reason)
    return None


def _nvfp4_activations(stored: Stored) -> Refusal | None:
    if not stored.symmetric:
        return Refusal("activations", "symmetric", "float formats have no zero point")
    if stored.scales != LOCAL:
        reason = "NVFP4 activations need local scales; scheme NVFP4 of a recipe.file has them"
        return Refusal("activations", "dynamic", reason)
    return _nvfp4("activations", stored)


def _block_activations(weights: Stored, stored: Stored) -> Refusal | None:
    assert weights.block_structure is not None
    if stored.strategy != "group":
        reason = "weights in blocks go with activations in groups"
        return Refusal("activations", "strategy", reason)
    if stored.scales != DYNAMIC:
        return Refusal("activations", "dynamic", "activations in groups need dynamic: true")
    if stored.group_size != weights.block_structure[1]:
        reason = f"groups are as wide as the weights' blocks, {weights.block_structure[1]}"
        return Refusal("activations", "group_size", reason)
    return None


def _of_weights(field: str, reason: str) -> Refusal:
    return Refusal("weights", field, reason)


def kv_refusal(stored: Stored) -> Refusal | None:
    """Why vLLM takes no scales of this kind for its KV cache; nothing where it does."""
    if (stored.type, stored.bits) != ("float", 8):
        wrong = "type" if stored.type != "float" else "bits"
        return Refusal("kv_cache", wrong, "vLLM's quantized KV cache is FP8: float with 8 bits")
    if stored.strategy not in ("tensor", "attn_head"):
        return Refusal("kv_cache", "strategy", "a KV cache has a scale for each tensor")
    if not stored.symmetric:
        return Refusal("kv_cache", "symmetric", "float formats have no zero point")
    if stored.scales != STATIC:
        return Refusal("kv_cache", "dynamic", "scales of a KV cache are calibrated: dynamic: false")
    if stored.scale_type is not None:
        return Refusal("kv_cache", "scale_type", "scales of a KV cache are in the model's own type")
    return None
