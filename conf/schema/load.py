"""Options of an evaluation's workload, engine and accelerator."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from conf.schema.checks import check_url
from conf.schema.kernels import KernelsConfig
from conf.schema.ranges import (
    MILLISECONDS_MOST,
    TOKENS_MOST,
    above,
    choices,
    not_an_option,
    not_empty,
    within,
)
from conf.schema.traffic import CapacityConfig, TrafficLoad

PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
# vLLM's options that say how much memory an engine takes.
KV_CACHE_SIZE, MEMORY_SHARE = "kv_cache_memory_bytes", "gpu_memory_utilization"
SIDE_BY_SIDE = (KV_CACHE_SIZE, MEMORY_SHARE)
"""What is set for engines that are loaded together."""
# The share for engines that are loaded together: vLLM requires it to be free when it starts.
SHARE_BESIDE_OTHERS = 0.01
DTYPES = ("auto", "bfloat16", "float", "float16", "float32", "half")
ENGINES = ("vllm", "vllm_server", "transformers")
EngineOptions = dict[str, Any]
"""The engine's own options by name. The engine declares their types."""


def is_beside_others(options: EngineOptions) -> bool:
    """Whether an engine was loaded together with others."""
    return bool(options.get(MEMORY_SHARE) == SHARE_BESIDE_OTHERS)


LOADS = ("batch", "concurrency", "rate")
# Fields that older rows do not have. They are in a row's settings and key only where they are set.
ADDED = ("from_traffic", "search", "traffic", "capacity")


@dataclass
class ScenarioConfig:
    """One workload: a batch that starts at once, or requests over time."""

    input_tokens: int | None = field(default=None, metadata=within(1, TOKENS_MOST))
    """Tokens in each prompt."""
    output_tokens: int | None = field(default=None, metadata=within(1, TOKENS_MOST))
    """Tokens in each answer."""
    batch: int | None = field(default=None, metadata=within(1, 10**6))
    """Requests that start at once; null for a sustained workload."""
    concurrency: int | None = field(default=None, metadata=within(1, 10**6))
    """Closed loop: clients, each of which sends its next request after its answer."""
    rate: float | None = field(default=None, metadata=above(0, 1e6))
    """Open loop: requests a second that arrive at random (Poisson) times."""
    requests: int | None = field(default=None, metadata=within(1, 10**7))
    """Requests in a sustained workload."""
    ttft_ms: float | None = field(default=None, metadata=above(0, MILLISECONDS_MOST))
    """A request of a sustained workload counts as good if its first token comes in this time."""
    tpot_ms: float | None = field(default=None, metadata=above(0, MILLISECONDS_MOST))
    """And if the following tokens take no longer than this each, in the mean."""
    from_traffic: bool = False
    """Take requests and arrivals from traffic=NAME; the file has nothing else then."""
    search: bool = False
    """With from_traffic: search the highest rate that meets the targets."""
    traffic: TrafficLoad | None = field(default=None, metadata=not_an_option())
    """Set by the evaluation, from the traffic that it read."""
    capacity: CapacityConfig | None = field(default=None, metadata=not_an_option())
    """Set by the evaluation, for a search."""

    def __post_init__(self) -> None:
        if self.from_traffic:
            self._check_traffic()
            return
        if self.search:
            raise ValueError("scenario: search needs from_traffic")
        for name in ("input_tokens", "output_tokens"):
            if getattr(self, name) is None:
                raise ValueError(f"scenario: {name} is missing")
        kinds = [name for name in LOADS if getattr(self, name)]
        if len(kinds) != 1:
            given = f"found {' and '.join(kinds)}" if kinds else "found none"
            raise ValueError(f"scenario: give one of batch, concurrency and rate; {given}")
        if self.is_sustained and not self.requests:
            raise ValueError(
                "scenario: a sustained workload needs requests, the number of requests"
            )
        if self.is_sustained and not (self.ttft_ms and self.tpot_ms):
            raise ValueError(
                "scenario: a sustained workload needs its targets, ttft_ms and tpot_ms"
            )

    def _check_traffic(self) -> None:
        """Traffic has its own lengths and arrivals: a second source of them is refused."""
        if self.traffic is not None:
            return  # the evaluation has set the rest
        for name in ("input_tokens", "output_tokens", *LOADS, "requests", "ttft_ms", "tpot_ms"):
            if getattr(self, name) is not None:
                instead = "targets" if name in ("ttft_ms", "tpot_ms") else "traffic"
                raise ValueError(f"scenario: from_traffic has no {name}; see {instead}.NAME")

    @property
    def is_sustained(self) -> bool:
        """Whether requests arrive over time, not all at once."""
        return self.batch is None

    @property
    def count(self) -> int:
        """Requests in one run."""
        return self.batch or self.requests or 0

    @property
    def tokens(self) -> int:
        """The longest context it reaches."""
        if self.traffic is not None:
            return self.traffic.longest_tokens
        return (self.input_tokens or 0) + (self.output_tokens or 0)

    def recorded(self) -> dict[str, Any]:
        """The settings as a row holds them."""
        settings = {
            name: value
            for name, value in asdict(self).items()
            if value is not None and (name not in ADDED or isinstance(value, dict))
        }
        if self.capacity is not None:
            settings["capacity"] = self.capacity.recorded()
        if self.traffic is not None:
            settings["traffic"] = self.traffic.recorded()
        return settings

    def identity(self) -> dict[str, Any]:
        """What tells this workload from others, for the key of its rows."""
        own = {name: value for name, value in asdict(self).items() if name not in ADDED}
        own |= {name: value for name, value in self.recorded().items() if name in ADDED}
        return own if self.traffic is None else own | {"traffic": self.traffic.identity()}


@dataclass
class EngineConfig:
    """The engine that loads a checkpoint."""

    kind: str = field(default="vllm", metadata=choices(*ENGINES))
    """vllm (in a process of its own), vllm_server (over HTTP) or transformers."""
    dtype: str = field(default="auto", metadata=choices(*DTYPES))
    """Number type of unquantized tensors; auto is the checkpoint's where the device has it."""
    max_model_len: int | None = field(default=None, metadata=within(1, TOKENS_MOST))
    """Longest context; null is what the scenarios need."""
    enforce_eager: bool | None = None
    """Without compiling and graphs; null is yes on a CPU, no on a GPU."""
    url: str | None = field(default=None, metadata=not_empty())
    """For vllm_server: a server that is already running, as http://HOST:PORT."""
    allow_missing_kv_scales: bool = False
    """Let an FP8 KV cache run with scales of 1 where the checkpoint has none."""
    kernels: KernelsConfig = field(default_factory=KernelsConfig)
    """The kernels of quantized layers in vLLM on a GPU."""
    options: EngineOptions = field(default_factory=dict)
    """Any further option of the engine; `engine.NAME=VALUE` puts it here."""

    def __post_init__(self) -> None:
        if self.url is not None and self.kind != "vllm_server":
            raise ValueError(f"engine.url works only with engine=vllm_server, not with {self.kind}")
        if self.url is not None:
            check_url("engine.url", self.url)

    @property
    def starts_vllm(self) -> bool:
        """Whether the command starts vLLM itself, so that its options reach it."""
        return self.kind != "transformers" and self.url is None


def gpus_of(options: EngineOptions) -> int:
    """How many GPUs an engine with these options takes."""
    return math.prod(int(options.get(name, 1)) for name in PARALLEL)


@dataclass
class GpuConfig:
    """The accelerator and its published specifications; peak rates are for dense products."""

    name: str | None = None
    """Its name as the driver gives it, or null to detect it."""
    compute_capability: float | None = field(default=None, metadata=above(0, 100))
    """Compute capability: 8.0 Ampere, 9.0 Hopper, 10.0 Blackwell."""
    memory_gib: float | None = field(default=None, metadata=above(0, 1e6))
    """Memory on the card."""
    bandwidth_gb_s: float | None = field(default=None, metadata=above(0, 1e7))
    """Memory bandwidth."""
    bf16_tflops: float | None = field(default=None, metadata=above(0, 1e7))
    """bf16 matrix products."""
    fp8_tflops: float | None = field(default=None, metadata=above(0, 1e7))
    """FP8 matrix products; null where it has none."""
    int8_tops: float | None = field(default=None, metadata=above(0, 1e7))
    """INT8 matrix products."""
    link_gb_s: float | None = field(default=None, metadata=above(0, 1e6))
    """What a card sends to the others of its host in one direction, by NVLink or PCIe."""
    price_per_hour: float | None = field(default=None, metadata=above(0, 1e6))
    """Price of one card for an hour, for the cost of tokens."""
    energy_price_per_kwh: float | None = field(default=None, metadata=above(0, 1e6))
    """Price of energy, added to the card's price; null where that includes it."""
    currency: str = field(default="USD", metadata=not_empty())
    """Currency of both prices, as tables show it."""
