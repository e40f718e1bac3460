"""Describes a scenario's settings as text."""

from typing import Any

from evaluate.results.row_types import TrafficSettings, WorkloadSettings

PHRASES = {
    "batch": ("{:,} request at once", "{:,} requests at once"),
    "concurrency": (
        "{:,} client that sends one request after another",
        "{:,} clients that each send one request after another",
    ),
    "rate": ("{:g} request/s arriving", "{:g} requests/s arriving"),
    "requests": ("{:,} request in all", "{:,} requests in all"),
    "input_tokens": ("{:,} token in", "{:,} tokens in"),
    "output_tokens": ("{:,} token out", "{:,} tokens out"),
    "ttft_ms": ("TTFT target {:g} ms",) * 2,
    "tpot_ms": ("TPOT target {:g} ms",) * 2,
}

OF_ARRIVALS = ("burstiness", "speed", "pause_s")
OF_TRAFFIC = (*OF_ARRIVALS, "prefix_caching")
"""The settings of traffic that names have where they differ: neither its source nor the hash of its
requests tells them."""


def workload_text(workload: WorkloadSettings) -> str:
    """The settings as a short phrase: 8 requests at once, 256 tokens in, 128 tokens out."""
    settings = workload.content()
    names = [
        *(name for name in PHRASES if name in settings),
        *(n for n in settings if n not in PHRASES),
    ]
    return ", ".join(_phrase(name, settings[name]) for name in names if settings[name] is not None)


def targets_phrases(workload: WorkloadSettings) -> list[str]:
    """The traffic and targets of a capacity search, without the rates that it tried."""
    settings = workload.content()
    phrases = []
    if workload.traffic is not None:
        phrases += [_traffic_phrase(workload.traffic), *_arrival_phrases(workload.traffic)]
    phrases += [
        _phrase(name, settings[name]) for name in ("ttft_ms", "tpot_ms") if name in settings
    ]
    if workload.capacity is not None:
        phrases.append(f"met by {workload.capacity.share:.6g} of the requests")
        if workload.capacity.times is None:
            phrases.append("arrivals drawn for each rate")
    return phrases


def _arrival_phrases(traffic: TrafficSettings) -> list[str]:
    """What sets its times beside the kind of arrivals."""
    content = traffic.content()
    return [f"{name} {content[name]}" for name in OF_ARRIVALS if content.get(name) is not None]


def _phrase(name: str, value: Any) -> str:
    if name == "traffic":
        return _traffic_phrase(TrafficSettings.model_validate(value))
    if name not in PHRASES:
        return f"{name.replace('_', ' ')} {value}"
    return PHRASES[name][value != 1].format(value)


def _traffic_phrase(traffic: TrafficSettings) -> str:
    inputs, outputs = traffic.input_tokens_mean or 0.0, traffic.output_tokens_mean or 0.0
    caching = "" if traffic.prefix_caching else ", without a prefix cache"
    drawn = f" ({traffic.drawn_answers:,} lengths drawn)" if traffic.drawn_answers else ""
    return (
        f"{traffic.source} traffic, {traffic.arrivals} arrivals, {inputs:,.0f} tokens in and "
        f"{outputs:,.0f} out in the mean{drawn}{caching}{sending_order(traffic)}"
    )


def sending_order(traffic: TrafficSettings) -> str:
    """How conversations follow each other, where rows of earlier versions have another order."""
    if traffic.whole_conversations:
        return ", one whole conversation after another"
    return ", each repeat from another conversation on" if traffic.begins_elsewhere else ""
