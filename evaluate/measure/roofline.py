"""The roofline: the least time that a scenario can take at the measured rates.

Decoding reads all weights and the whole KV cache for every token. Prefill multiplies the prompt
with all weights. Each phase takes at least the longest of reading, multiplying and, with several
GPUs, sending activations between them.

Of a mixture of experts, a step reads the experts that its tokens visit. How many differ is not
known: it is taken as the mean for tokens that choose their experts evenly and independently. A
router that prefers some experts reads fewer, and may be faster than this.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from conf.formats.quant_args import QuantGroup, QuantizationConfig
from conf.formats.quantization_config import quantization_of
from conf.formats.registry import format_of, other_parts, packed_parts
from conf.models import head_width, kv_values_per_token, required_int
from conf.schema.load import ScenarioConfig
from evaluate.measure.rates.links import Links
from evaluate.results.row_types import Limit
from evaluate.results.row_values import SpeedValues
from serve.tensors import Tensor

EXPERTS = ".experts."  # in the names of routed experts' tensors, not of shared ones
MOST_OVERLAP = 0.05  # share of output tokens that arrive before the last request's first token


@dataclass
class Rates:
    """Rates of the accelerator, in bytes and operations per second."""

    bandwidth: float
    products: dict[str, float]
    """By number type: bf16, fp8, int8, float32."""
    source: str = "measured"
    """measured, or datasheet."""
    links: Links = field(default_factory=Links)

    def __post_init__(self) -> None:
        for rate in (self.bandwidth, *self.products.values()):
            if not 0 < rate < math.inf:
                raise ValueError(f"a rate of {rate} a second")


@dataclass(frozen=True)
class Experts:
    """The routed experts of all layers."""

    bytes: float
    """All of them, as stored, with their scales."""
    weights: float
    count: int
    """Experts in a layer."""
    per_token: int
    """Experts that one token visits."""

    @property
    def share_per_token(self) -> float:
        return self.per_token / self.count

    def read_share(self, tokens: float) -> float:
        """The expected share of a layer's experts that at least one of these tokens visits."""
        return float(1 - (1 - self.share_per_token) ** tokens)


@dataclass
class Cost:
    """The bytes and operations that a checkpoint needs."""

    body_bytes: float
    """Weights of all layers, as stored, with their scales."""
    head_bytes: float
    """The output head, which a tied model shares with its embedding."""
    body_weights: float
    head_weights: float
    kv_bytes: float
    """Per token of context."""
    attention_operations: float
    """Per pair of a token and one that it attends to."""
    product: str
    """The number type of the quantized layers' products."""
    plain_product: str
    """The number type of attention and of layers that are not quantized."""
    experts: Experts | None = None
    """Of a mixture of experts; the body is the rest of the layers."""
    hidden: int = 0
    layers: int = 0

    @property
    def weight_gib(self) -> float:
        """All weights of layers and head, also of experts that a step does not visit."""
        experts = self.experts.bytes if self.experts else 0.0
        return (self.body_bytes + self.head_bytes + experts) / 2**30

    def layer_bytes(self, tokens: float) -> float:
        """What a step with so many tokens reads of the layers' weights."""
        experts = self.experts.read_share(tokens) * self.experts.bytes if self.experts else 0.0
        return self.body_bytes + experts

    @property
    def weights_per_token(self) -> float:
        """Weights of the layers that one token is multiplied with."""
        experts = self.experts.weights * self.experts.share_per_token if self.experts else 0.0
        return self.body_weights + experts


@dataclass
class LeastTime:
    """The least seconds of each phase, and whether memory, compute or the link bounds it."""

    prefill_s: float
    prefill_bound: str
    decode_s: float
    decode_bound: str


def cost(
    tensors: dict[str, Tensor],
    config: Mapping[str, object],
    dtype_bytes: int,
    kv_bytes: int | None = None,
) -> Cost | None:
    """The cost of a checkpoint's tensors, with 16-bit ones as wide as the engine holds them. None
    for a mixture of experts whose config does not say how many of them a token visits."""
    expert_names = {name for name in tensors if EXPERTS in name}
    counts = _expert_counts(config)
    if expert_names and counts is None:
        return None
    quantization = quantization_of(config)
    bits, head_bits = _weight_bits(quantization)
    named_bits = _named_bits(quantization)
    layers_tensors = [(name, tensor) for name, tensor in tensors.items() if ".layers." in name]
    body = [(name, tensor) for name, tensor in layers_tensors if name not in expert_names]
    routed = [(name, tensor) for name, tensor in layers_tensors if name in expert_names]
    head = [(name, tensor) for name, tensor in tensors.items() if "lm_head" in name]
    if not head:
        head = [(name, tensor) for name, tensor in tensors.items() if "embed_tokens" in name]
    heads, layers = (
        required_int(config, "num_attention_heads"),
        required_int(config, "num_hidden_layers"),
    )
    has_kv_scales = quantization is not None and quantization.kv_cache is not None
    kv_width = kv_bytes or (1 if has_kv_scales else dtype_bytes)
    return Cost(
        body_bytes=sum(tensor.held_bytes(dtype_bytes) for _, tensor in body),
        head_bytes=sum(tensor.held_bytes(dtype_bytes) for _, tensor in head),
        body_weights=sum(
            _weights(name, tensor, named_bits.get(name.rpartition(".")[0], bits))
            for name, tensor in body
        ),
        head_weights=sum(_weights(name, tensor, head_bits) for name, tensor in head),
        kv_bytes=float(kv_values_per_token(config) * kv_width),
        attention_operations=4.0 * layers * heads * head_width(config),
        product=_product(quantization, dtype_bytes),
        plain_product=_plain_product(dtype_bytes),
        experts=Experts(
            sum(tensor.held_bytes(dtype_bytes) for _, tensor in routed),
            sum(
                _weights(name, tensor, named_bits.get(name.rpartition(".")[0], bits))
                for name, tensor in routed
            ),
            *counts,
        )
        if routed and counts
        else None,
        hidden=required_int({"hidden_size": 0, **config}, "hidden_size"),
        layers=layers,
    )


def _expert_counts(config: Mapping[str, object]) -> tuple[int, int] | None:
    """The experts of a layer, and those that a token visits."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((config[name] for name in names if config.get(name)), None)
    per_token = config.get("num_experts_per_tok")
    if isinstance(count, int) and isinstance(per_token, int) and 0 < per_token <= count:
        return count, per_token
    return None


def least_time(work: Cost, scenario: ScenarioConfig, rates: Rates) -> LeastTime:
    """The least time of a batch's two phases."""
    batch, inputs, outputs = scenario.count, scenario.input_tokens or 0, scenario.output_tokens or 0
    prompt = batch * inputs
    pairs = batch * inputs * (inputs + 1) / 2
    layer_bytes, step_bytes = work.layer_bytes(prompt), work.layer_bytes(batch)
    reading = (layer_bytes + work.head_bytes + prompt * work.kv_bytes) / rates.bandwidth
    multiplying = _multiply_seconds(work, rates, prompt, batch, pairs)
    prefill = {
        "memory": reading,
        "compute": multiplying,
        "link": _link_seconds(work, rates, prompt),
    }
    decode_reading = decode_multiplying = decode = 0.0
    sending = _link_seconds(work, rates, batch)
    for step in range(1, outputs):
        context = batch * (inputs + step)
        read = step_bytes + work.head_bytes + context * work.kv_bytes
        read_s = read / rates.bandwidth
        multiply_s = _multiply_seconds(work, rates, batch, batch, context)
        decode_reading += read_s
        decode_multiplying += multiply_s
        decode += max(read_s, multiply_s, sending)
    of_decode = {
        "memory": decode_reading,
        "compute": decode_multiplying,
        "link": sending * max(0, outputs - 1),
    }
    return LeastTime(
        prefill_s=max(prefill.values()),
        prefill_bound="compute" if multiplying >= max(prefill.values()) else _longest(prefill),
        decode_s=decode,
        decode_bound=_longest(of_decode),
    )


def _longest(seconds: dict[str, float]) -> str:
    """What takes the longest; of equals, the first."""
    return max(seconds, key=seconds.__getitem__)


def _link_seconds(work: Cost, rates: Rates, tokens: float) -> float:
    value_bytes = 4 if work.plain_product == "float32" else 2
    return rates.links.seconds(tokens, work.hidden, work.layers, value_bytes)


def reached(work: Cost, scenario: ScenarioConfig, rates: Rates, values: SpeedValues) -> Limit:
    """The least seconds of each phase, and their share of the measured seconds. Empty if prefill
    and decode overlapped."""
    latency, prefill = values.latency_s, values.ttft_last_s
    overlaps = (values.overlap_share or 0.0) > MOST_OVERLAP
    if work.plain_product not in rates.products or overlaps or latency is None or prefill is None:
        return Limit()
    least = least_time(work, scenario, rates)
    limit = Limit(
        **asdict(least),
        bandwidth_gb_s=rates.bandwidth / 1e9,
        product=work.product,
        product_tops=rates.products.get(work.product, 0.0) / 1e12,
        rates=rates.source,
        body_gb=work.layer_bytes(float("inf")) / 1e9,
        head_gb=work.head_bytes / 1e9,
        prefill_share=least.prefill_s / prefill,
    )
    if latency > prefill and (scenario.output_tokens or 0) > 1:
        limit.decode_share = least.decode_s / (latency - prefill)
    return limit


def _multiply_seconds(work: Cost, rates: Rates, tokens: float, heads: float, pairs: float) -> float:
    """Seconds of the products in layers (`tokens`), head (`heads`) and attention (`pairs`)."""
    plain_rate = rates.products[work.plain_product]
    quantized_rate = rates.products.get(work.product, plain_rate)
    body = 2 * work.weights_per_token * tokens / quantized_rate
    return body + (2 * work.head_weights * heads + work.attention_operations * pairs) / plain_rate


def _weights(name: str, tensor: Tensor, bits: float | None) -> float:
    """The number of weights of a matrix, also if several are packed into one element."""
    if len(tensor.shape) < 2 or name.endswith(other_parts()):
        return 0
    if name.rsplit(".", 1)[-1] in packed_parts() and bits:
        return tensor.bytes * 8 / bits
    return tensor.count


def _weight_bits(config: QuantizationConfig | None) -> tuple[float | None, float | None]:
    """Bits per weight in the layers and in the head."""
    groups = [group for group in config.groups if group.weights] if config is not None else []
    body = next((_bits(group) for group in groups if not group.is_head), None)
    head = next((_bits(group) for group in groups if group.is_head), None)
    return body, head or body


def _named_bits(config: QuantizationConfig | None) -> dict[str, float | None]:
    """Bits per weight of the modules that the groups name, where groups differ."""
    groups = [group for group in config.groups if group.weights] if config is not None else []
    return {target: _bits(group) for group in groups for target in group.targets}


def _bits(group: QuantGroup) -> float | None:
    stored = format_of(group)
    assert group.weights is not None
    return (stored.bits(group.weights) if stored else group.weights.bits) or None


def _product(config: QuantizationConfig | None, dtype_bytes: int) -> str:
    """The number type of the products. Weight-only formats multiply in the plain type."""
    for group in config.groups if config is not None else []:
        stored = format_of(group)
        if stored is not None and (product := stored.product(group)) is not None:
            return product
    return _plain_product(dtype_bytes)


def _plain_product(dtype_bytes: int) -> str:
    return "float32" if dtype_bytes == 4 else "bf16"
