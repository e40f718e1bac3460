"""Computes metrics from timed requests of any engine. Names end in their units.

Times follow vLLM's definitions: TTFT from the moment a request is handed over to its first token,
TPOT = (last token - first token) / (tokens - 1) for each request, and the gaps between a request's
successive tokens as they arrive. Throughputs of a batch follow its phases: prompts until every
request has its first token, answers after that. In a large batch some requests are answered while
others still wait. `overlap_share` measures that; only `generated_tokens_per_s` is meaningful then.
"""

import itertools
import statistics
from dataclasses import dataclass

from conf.errors import environment_failure
from conf.schema.load import ScenarioConfig
from evaluate.results.capacity_search import Limit
from evaluate.results.row_values import SpeedValues
from evaluate.results.summary import PERCENT_99, percentile

RAMP_SHARE = 0.2  # of the time in which requests arrive
NOT_SENT, UNFINISHED = "not sent", "not finished"


@dataclass
class Request:
    """The times of one request, in seconds since the run began."""

    input_tokens: int
    """Tokens of the prompt, as the engine counted them."""
    token_times: list[float]
    """When each token of the answer arrived."""
    start: float = 0.0
    """When the request was handed over."""
    error: str = ""
    """Why there is no answer. A failed request is counted, but is in no average."""
    send_delay: float = 0.0
    """How much later than planned it was sent: the generator's own delay."""

    @property
    def output_tokens(self) -> int:
        return len(self.token_times)

    @property
    def is_answered(self) -> bool:
        return bool(self.token_times) and not self.error

    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.start

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.token_times[-1] - self.token_times[0]) / (self.output_tokens - 1)

    @property
    def latency(self) -> float:
        return self.token_times[-1] - self.start

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.token_times)]


def batch_values(requests: list[Request]) -> SpeedValues:
    """Latency, TTFT, TPOT and throughput of requests that started at once."""
    answered = _answered(requests)
    latency = max(request.token_times[-1] for request in answered)
    inputs = sum(request.input_tokens for request in answered)
    outputs = sum(request.output_tokens for request in answered)
    last_first_token = max(request.ttft for request in answered)
    decoding = latency - last_first_token
    answering = max(request.token_times[0] for request in answered)
    decoded = sum(time > answering for request in answered for time in request.token_times)
    return SpeedValues(
        latency_s=latency,
        ttft_first_s=min(request.ttft for request in answered),
        ttft_last_s=last_first_token,
        **_token_times(answered),
        input_tokens=float(inputs),
        output_tokens=float(outputs),
        input_tokens_per_s=inputs / last_first_token,
        output_tokens_per_s=outputs / decoding if decoding > 0 else 0.0,
        decode_tokens_per_s=decoded / decoding if decoding > 0 else 0.0,
        generated_tokens_per_s=outputs / latency,
        overlap_share=(outputs - len(answered) - decoded) / outputs,
        overall_tokens_per_s=(inputs + outputs) / latency,
        requests_per_s=len(answered) / latency,
        failed_requests=float(len(requests) - len(answered)),
    )


def serving_values(requests: list[Request], scenario: ScenarioConfig) -> SpeedValues:
    """Metrics of a sustained workload, as clients see it. Goodput counts the requests that meet
    the latency targets."""
    answered = _answered(requests)
    begin = min(request.start for request in requests)
    duration = max(request.token_times[-1] for request in answered) - begin
    good = [request for request in answered if is_in_time(request, scenario)]
    waits = [request.ttft for request in answered]
    latencies = [request.latency for request in answered]
    return SpeedValues(
        latency_s=duration,
        request_latency_mean_s=statistics.fmean(latencies),
        request_latency_median_s=statistics.median(latencies),
        request_latency_p99_s=percentile(latencies, PERCENT_99),
        ttft_first_s=min(waits),
        ttft_last_s=max(waits),
        ttft_median_s=statistics.median(waits),
        ttft_p99_s=percentile(waits, PERCENT_99),
        **_token_times(answered),
        input_tokens=float(sum(request.input_tokens for request in answered)),
        output_tokens=float(sum(request.output_tokens for request in answered)),
        output_tokens_per_s=sum(request.output_tokens for request in answered) / duration,
        generated_tokens_per_s=sum(request.output_tokens for request in answered) / duration,
        overall_tokens_per_s=sum(r.input_tokens + r.output_tokens for r in answered) / duration,
        requests_per_s=len(answered) / duration,
        goodput_requests_per_s=len(good) / duration,
        good_share=len(good) / len(requests),
        failed_requests=float(len(requests) - len(answered)),
        **_steady_rate(answered),
        send_delay_p99_s=percentile([request.send_delay for request in answered], PERCENT_99),
    )


def _steady_rate(answered: list[Request]) -> dict[str, float]:
    """The output rate from a fifth of the arrivals' time to the last arrival; empty where requests
    do not arrive over time. In an open loop, a run's end has few requests left."""
    first, last = (limit(request.start for request in answered) for limit in (min, max))
    begin = first + RAMP_SHARE * (last - first)
    if last <= begin:
        return {}
    tokens = sum(begin < moment <= last for request in answered for moment in request.token_times)
    return {"steady_tokens_per_s": tokens / (last - begin)}


def _answered(requests: list[Request]) -> list[Request]:
    """The answered requests. Raises with the first error if all requests failed."""
    answered = [request for request in requests if request.is_answered]
    if not answered:
        raise environment_failure(f"all {len(requests)} requests failed: {requests[0].error}")
    return answered


def missed_target(request: Request, scenario: ScenarioConfig) -> Limit | None:
    """The target that a request missed, as far as its tokens tell; the first one of two. The
    further tokens are judged when all of them are there."""
    assert scenario.ttft_ms is not None
    assert scenario.tpot_ms is not None
    if request.token_times and request.ttft * 1e3 > scenario.ttft_ms:
        return Limit.FIRST_TOKEN
    if request.is_answered and (request.tpot or 0.0) * 1e3 > scenario.tpot_ms:
        return Limit.FURTHER_TOKENS
    return None


def is_in_time(request: Request, scenario: ScenarioConfig) -> bool:
    """Whether an answered request met both targets."""
    return missed_target(request, scenario) is None


def come_at_once(requests: list[Request]) -> bool:
    """Whether all tokens of at least half of the longer answers arrived at one moment."""
    paces = _paces(requests)
    return bool(paces) and statistics.median(paces) <= 0


def _paces(requests: list[Request]) -> list[float]:
    """The TPOT of each answer of two tokens or more."""
    return [pace for request in requests if (pace := request.tpot) is not None]


def _token_times(requests: list[Request]) -> dict[str, float]:
    """TPOT over requests and gaps over all tokens; empty where no pace can be told."""
    paces = _paces(requests)
    if not paces or (median := statistics.median(paces)) <= 0:
        return {}
    gaps = [gap for request in requests for gap in request.gaps]
    return {
        "tpot_median_s": median,
        "tpot_p99_s": percentile(paces, PERCENT_99),
        "gap_median_s": statistics.median(gaps),
        "gap_p99_s": percentile(gaps, PERCENT_99),
    }
