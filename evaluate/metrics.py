"""The arithmetic of a timed batch, apart from any engine."""

import math
from dataclasses import dataclass


@dataclass
class Request:
    """What an engine says of one finished request; times in seconds since the batch began."""

    input_tokens: int
    output_tokens: int
    first_token_s: float
    last_token_s: float


def batch_values(requests: list[Request], latency_s: float) -> dict[str, float]:
    """Latency, time to first token, time per output token and throughput of one batch.

    TPOT is vLLM's: (last token - first token) / (tokens - 1) for each request, the median over
    requests. Output throughput leaves out the time before every request has its first token.
    """
    inputs = sum(request.input_tokens for request in requests)
    outputs = sum(request.output_tokens for request in requests)
    last_first_token = max(request.first_token_s for request in requests)
    decoding = latency_s - last_first_token
    gaps = sorted(
        (request.last_token_s - request.first_token_s) / (request.output_tokens - 1)
        for request in requests
        if request.output_tokens > 1
    )
    return {
        "latency_s": latency_s,
        "ttft_first_s": min(request.first_token_s for request in requests),
        "ttft_last_s": last_first_token,
        "tpot_median_s": _median(gaps) if gaps else 0.0,
        "input_tokens": float(inputs),
        "output_tokens": float(outputs),
        "input_tokens_per_s": inputs / last_first_token,
        "output_tokens_per_s": outputs / decoding if decoding > 0 else 0.0,
        "overall_tokens_per_s": (inputs + outputs) / latency_s,
    }


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def perplexity(log_probabilities: list[float]) -> float:
    """exp of the mean negative log-probability."""
    return math.exp(-sum(log_probabilities) / len(log_probabilities))
