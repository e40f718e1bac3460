"""Why no engine runs a format, and the reasons that formats share."""

from dataclasses import dataclass

from conf.formats.quant_args import DYNAMIC, FLOAT, STATIC, QuantArgs


@dataclass(frozen=True)
class Refusal:
    """The field that no engine runs, and why."""

    part: str
    """weights, activations or kv_cache."""
    field: str
    reason: str


def refuse_weights(field: str, reason: str) -> Refusal:
    return Refusal("weights", field, reason)


def refuse_activations(field: str, reason: str) -> Refusal:
    return Refusal("activations", field, reason)


def mismatch_refusal(weights: QuantArgs, activations: QuantArgs) -> Refusal | None:
    """Refuses activations of another type or width than their weights."""
    if activations.type != weights.type:
        reason = f"no kernel multiplies {weights.type} weights with {activations.type} activations"
        return refuse_activations("type", reason)
    if activations.bits != weights.bits:
        reason = f"activations must have as many bits as the weights, {weights.bits}"
        return refuse_activations("bits", reason)
    return None


def scale_refusal(activations: QuantArgs) -> Refusal | None:
    """Refuses scales that no 8-bit kernel takes."""
    if activations.scale_type is not None:
        return refuse_activations("scale_type", "only NVFP4 has a scale type")
    if activations.type == FLOAT and not activations.symmetric:
        reason = "float formats have no zero point; use symmetric: true"
        return refuse_activations("symmetric", reason)
    return None


def strategy_refusal(activations: QuantArgs) -> Refusal | None:
    """Refuses strategies that no 8-bit kernel takes: only token and tensor have one."""
    allowed = {("token", DYNAMIC), ("tensor", STATIC)}
    if activations.type == FLOAT:
        allowed.add(("tensor", DYNAMIC))
    if (activations.strategy, activations.scales) in allowed:
        return None
    reason = "activations need strategy token and dynamic: true, or tensor and dynamic: false"
    field = "strategy" if activations.strategy not in ("token", "tensor") else "dynamic"
    return refuse_activations(field, reason)
