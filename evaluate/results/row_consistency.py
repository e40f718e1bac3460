"""Whether the fields of a row agree with each other, where one follows from others.

A row keeps times, counts and rates of the same run, so that most of its figures can be worked out
from others. A figure that was damaged or typed in by hand contradicts them.
"""

import itertools
import math
from collections.abc import Iterator

from evaluate.accuracy.verdicts import BROKEN, BROKEN_DIVERGENCE, BROKEN_RECOVERY
from evaluate.results.row_types import Limit, Requests, WorkloadSettings
from evaluate.results.row_values import QuickAccuracy, SpeedValues, TaskAccuracy
from evaluate.results.rows import AccuracyRow, Row, SpeedRow
from evaluate.results.summary import PERCENT_99, percentile

ROUNDING = 1e-5  # rows keep seven digits
CLOCK_S = 3e-6  # times of requests are kept to the microsecond
DIGITS = 2e-6  # and to seven digits
MOST = 100_000  # requests whose times are looked at one by one
MOST_HITS = 0.02  # one in a hundred makes a run invalid; a prompt may be looked up twice
INTERVAL = 0.02  # an interval that was drawn at random holds its own mean, to this share
# No larger than the next one, where both are there.
ORDERED = (
    ("ttft_first_s", "ttft_last_s", "latency_s"),
    ("ttft_first_s", "ttft_median_s", "ttft_p99_s", "ttft_last_s"),
    ("request_latency_median_s", "request_latency_p99_s", "latency_s"),
    ("tpot_median_s", "tpot_p99_s", "latency_s"),
    ("gap_median_s", "gap_p99_s", "latency_s"),
    ("decode_tokens_per_s", "output_tokens_per_s"),
    ("goodput_requests_per_s", "requests_per_s"),
)
WITH_VALUES = ("settings", "environment", "invalid")  # what a run counts by
TOKENS = ("input_tokens", "output_tokens")
JUDGED = ("perplexity", "score", "verdict", "tokens")
PAIRED = ("difference", "difference_low", "difference_high", "lost", "gained", "p_value")


def contradiction(row: Row) -> str:
    """The first thing that cannot be so, with the figures; empty for a row that agrees."""
    if isinstance(row, SpeedRow):
        return next(_speed(row), "")
    if isinstance(row, AccuracyRow):
        return next(_accuracy(row), "")
    return ""


def _speed(row: SpeedRow) -> Iterator[str]:
    values, settings, limit = row.values, row.settings, row.limit
    for name in WITH_VALUES if values.names else ():
        if name not in row.names:
            yield f"the field {name} is missing"
    yield from _settings(settings)
    if limit.rates == "measured" and limit.bandwidth_gb_s is None:
        yield "limit.rates is measured, and limit.bandwidth_gb_s is missing"
    for names in ORDERED:
        yield from _ordered(values, names)
    yield from _counts(row)
    yield from _rates(values, settings)
    yield from _times(values, settings, row.requests)
    yield from _limit_shares(values, limit)
    yield from _hardware(row)


def _settings(settings: WorkloadSettings) -> Iterator[str]:
    kinds = [name for name in ("batch", "concurrency", "rate") if name in settings.names]
    if len(kinds) > 1:
        yield f"settings has {' and '.join(kinds)}: a load has one of them"
    for name in TOKENS:
        if kinds and name not in settings.names:
            yield f"settings.{name} is missing"


def _ordered(values: SpeedValues, names: tuple[str, ...]) -> Iterator[str]:
    known = [(name, value) for name in names if (value := values.figure(name)) is not None]
    for (one, smaller), (other, larger) in itertools.pairwise(known):
        if smaller > larger * (1 + ROUNDING) + CLOCK_S:
            yield _against(f"values.{one}", smaller, f"above values.{other}", larger)


def _counts(row: SpeedRow) -> Iterator[str]:
    """Tokens and requests, by what was asked for and by what each request had."""
    values, settings, requests = row.values, row.settings, row.requests
    answered = []
    for name, lengths, total, length in (
        ("input_tokens", requests.input_tokens, values.input_tokens, settings.input_tokens),
        ("output_tokens", requests.output_tokens, values.output_tokens, settings.output_tokens),
    ):
        if not lengths:
            continue
        answered.append(sum(lengths.values()))
        counted = sum(int(tokens) * count for tokens, count in lengths.items())
        yield from _same(f"values.{name}", total, f"requests.{name}", counted)
        if not row.invalid and length is not None and set(lengths) != {str(length)}:
            shown = ", ".join(sorted(lengths, key=int)[:3])
            yield _against(f"requests.{name}", shown, f"but settings.{name}", length)
    if requests.times_s:
        answered.append(sum(int(count) for *_, count in requests.times_s))
    asked, failed = settings.request_count, values.failed_requests or 0
    for count in answered:
        yield from _same("requests answered", count, "requests answered", answered[0])
        if asked is not None:
            yield from _same("answered and failed requests", count + failed, "settings", asked)
    if failed and not row.invalid:
        yield f"values.failed_requests is {failed:g}, and the run is not marked invalid"
    hits, inputs = values.prefix_hits or 0, values.input_tokens
    if inputs and not row.invalid and hits > MOST_HITS * inputs:
        yield f"values.prefix_hits is {hits:g} of {inputs:g}, and the run is not marked invalid"
    if not answered and asked and not failed and not row.invalid:
        for name, total, length in (
            ("input_tokens", values.input_tokens, settings.input_tokens),
            ("output_tokens", values.output_tokens, settings.output_tokens),
        ):
            if length is not None:
                yield from _same(f"values.{name}", total, "settings", asked * length)


def _rates(values: SpeedValues, settings: WorkloadSettings) -> Iterator[str]:
    """Each rate is a number of tokens or requests over a time that is kept, too."""
    latency, last = values.latency_s, values.ttft_last_s
    count, failed = settings.request_count, values.failed_requests
    inputs = _total(values.input_tokens, count, settings.input_tokens)
    outputs = _total(values.output_tokens, count, settings.output_tokens)
    both = None if inputs is None or outputs is None else inputs + outputs
    yield from _rate(values, "generated_tokens_per_s", outputs, latency)
    yield from _rate(values, "overall_tokens_per_s", both, latency)
    if settings.batch is not None:
        yield from _rate(values, "input_tokens_per_s", inputs, last)
        yield from _decode_rates(values, settings.batch, outputs)
    elif settings.requests is not None:
        yield from _rate(values, "output_tokens_per_s", outputs, latency)
    if count is not None and failed is not None:
        yield from _rate(values, "requests_per_s", count - failed, latency)
    yield from _rate(values, "joules_per_output_token", values.energy_j, outputs)
    if count is not None and values.good_share is not None:
        yield from _rate(values, "goodput_requests_per_s", values.good_share * count, latency)


def _decode_rates(values: SpeedValues, batch: int, outputs: float | None) -> Iterator[str]:
    latency, last = values.latency_s, values.ttft_last_s
    if latency is None or last is None or latency - last <= 1e-3 * latency:
        return
    # The difference of two rounded times.
    decoding = latency - last
    yield from _rate(values, "output_tokens_per_s", outputs, decoding, 1e-3)
    overlap, failed = values.overlap_share, values.failed_requests
    if outputs is not None and overlap is not None and failed is not None:
        after = outputs * (1 - overlap) - (batch - failed)
        yield from _rate(values, "decode_tokens_per_s", after, decoding, 1e-3)


def _total(tokens: float | None, requests: int | None, length: int | None) -> float | None:
    """Tokens of all requests, as measured, or else by the settings."""
    if tokens is not None:
        return tokens
    return None if requests is None or length is None else float(requests * length)


def _rate(
    values: SpeedValues, name: str, amount: float | None, over: float | None, tolerance: float = 0.0
) -> Iterator[str]:
    if amount is not None and over:
        rate = values.figure(name)
        yield from _same(f"values.{name}", rate, "its parts", amount / over, tolerance)


def _times(values: SpeedValues, settings: WorkloadSettings, requests: Requests) -> Iterator[str]:
    """Times by those of single requests, where the row keeps them."""
    yield from _pace(values, settings)
    times = requests.times_s
    if not times:
        return
    for start, first, last, count in times:
        if not (start <= first <= last and count >= 1 and count == int(count)):
            yield f"requests.times_s holds [{start:g}, {first:g}, {last:g}, {count:g}]"
    if values.failed_requests:
        return  # whose times are not kept
    begin = 0.0 if settings.batch is not None else min(start for start, *_ in times)
    end = max(last for _, _, last, _ in times)
    waits = [first - start for start, first, _, _ in times]
    expected = {
        "latency_s": end - begin,
        "ttft_first_s": min(waits),
        "ttft_last_s": max(waits),
    }
    tokens, many = settings.output_tokens or 1, sum(count for *_, count in times)
    if tokens > 1 and set(requests.output_tokens) == {str(tokens)} and many <= MOST:
        paces = [
            (last - first) / (tokens - 1)
            for _, first, last, count in times
            for _ in range(int(count))
        ]
        expected["tpot_median_s"] = percentile(paces, 0.5)
        expected["tpot_p99_s"] = percentile(paces, PERCENT_99)
    for name, time in expected.items():
        clock = CLOCK_S + DIGITS * end
        yield from _same(f"values.{name}", values.figure(name), "requests.times_s", time, 0, clock)


def _pace(values: SpeedValues, settings: WorkloadSettings) -> Iterator[str]:
    """No request of a batch takes longer for a token than the whole batch allows."""
    tokens, latency = settings.output_tokens or 1, values.latency_s
    first = values.ttft_last_s if values.ttft_first_s is None else values.ttft_first_s
    if tokens == 1 or settings.batch is None or latency is None or first is None:
        return
    most = (latency - first) / (tokens - 1)
    for name, pace in (("tpot_median_s", values.tpot_median_s), ("tpot_p99_s", values.tpot_p99_s)):
        if pace is not None and pace > most * (1 + 1e-3) + CLOCK_S:
            yield _against(f"values.{name}", pace, "more than its run allows,", most)
        if pace is not None and settings.batch == 1 and pace < most / 2:
            yield _against(f"values.{name}", pace, "less than its run tells,", most)


def _limit_shares(values: SpeedValues, limit: Limit) -> Iterator[str]:
    """A share of the limit is its least seconds over the seconds that were measured."""
    latency, last = values.latency_s, values.ttft_last_s
    decoding = None if latency is None or last is None else latency - last
    for phase, seconds, least, share in (
        ("prefill", last, limit.prefill_s, limit.prefill_share),
        ("decode", decoding, limit.decode_s, limit.decode_share),
    ):
        if least is not None and seconds is not None and seconds > 1e-3 * (latency or 0):
            yield from _same(f"limit.{phase}_share", share, "its parts", least / seconds, 1e-3)


def _hardware(row: SpeedRow) -> Iterator[str]:
    """Memory by the lengths of the load and by the weights, clocks by the card's highest."""
    memory, settings, limit = row.memory, row.settings, row.limit
    held, inputs, outputs = memory.kv_cache_tokens, settings.input_tokens, settings.output_tokens
    if held is not None and inputs is not None and outputs is not None:
        fitting = held / (inputs + outputs)
        yield from _same("memory.kv_cache_requests", memory.kv_cache_requests, "its parts", fitting)
    if limit.body_gb is not None and limit.head_gb is not None:
        weights = (limit.body_gb + limit.head_gb) * 1e9 / 2**30
        yield from _same(
            "memory.weights_read_gib", memory.weights_read_gib, "limit's parts", weights
        )
    clock, most = row.values.sm_clock_mhz, row.environment.max_sm_clock_mhz
    if clock and most and clock > 1.05 * most:
        yield _against("values.sm_clock_mhz", clock, "above the card's highest,", most)


def _accuracy(row: AccuracyRow) -> Iterator[str]:
    values = row.values
    low, high = values.recovery_low, values.recovery_high
    yield from _interval("recovery", values.recovery, low, high)
    if isinstance(values, QuickAccuracy):
        yield from _quick(values)
    else:
        yield from _task(values)


def _quick(values: QuickAccuracy) -> Iterator[str]:
    if values.names.isdisjoint(JUDGED):
        yield f"values has none of {', '.join(JUDGED)}"
    low, high = values.divergence_low, values.divergence_high
    yield from _interval("divergence", values.divergence_mean, low, high)
    recovery, verdict = values.recovery, values.verdict
    if values.original_perplexity is not None and values.perplexity is not None:
        share = values.original_perplexity / values.perplexity
        yield from _same("values.recovery", recovery, "the perplexities", share, 1e-3)
    agreed, continued = values.agreed_tokens_mean, values.continued_tokens
    if agreed is not None and continued is not None and agreed > continued * (1 + ROUNDING):
        yield _against("values.agreed_tokens_mean", agreed, "above continued_tokens", continued)
    if verdict == BROKEN or verdict is None:
        return
    if recovery is not None and recovery < BROKEN_RECOVERY:
        yield f"values.verdict is {verdict!r} with a recovery of {recovery:g}"
    divergence = values.divergence_mean or 0
    if divergence > BROKEN_DIVERGENCE:
        yield f"values.verdict is {verdict!r} with a divergence of {divergence:g}"


def _task(values: TaskAccuracy) -> Iterator[str]:
    for name in PAIRED if values.verdict is not None else ():
        if name not in values.names:
            yield f"values.{name} is missing"
    yield from _interval("score", values.score, values.score_low, values.score_high)
    low, high = values.difference_low, values.difference_high
    yield from _interval("difference", values.difference, low, high)
    if values.original_score:
        share = values.score / values.original_score
        yield from _same("values.recovery", values.recovery, "the scores", share, 1e-3)
    if values.original_score is not None:
        apart = values.score - values.original_score
        yield from _same("values.difference", values.difference, "the scores", apart, 0, 1e-5)
    changed = (values.lost or 0) + (values.gained or 0)
    if changed > values.questions:
        yield _against("values.lost and gained", changed, "above questions", values.questions)


def _interval(
    name: str, middle: float | None, low: float | None, high: float | None
) -> Iterator[str]:
    if low is None or high is None:
        return
    if low > high:
        yield _against(f"values.{name}_low", low, f"above values.{name}_high", high)
    room = INTERVAL * max(abs(low), abs(high))
    if middle is not None and not low - room <= middle <= high + room:
        yield f"values.{name} is {middle:g}, outside its interval from {low:g} to {high:g}"


def _same(
    name: str,
    value: float | None,
    source: str,
    expected: float,
    relative: float = 0.0,
    absolute: float = 0.0,
) -> Iterator[str]:
    close = max(relative, ROUNDING)
    if value is not None and not math.isclose(value, expected, rel_tol=close, abs_tol=absolute):
        yield f"{name} is {value:g}, {source} {'say' if source[-1] == 's' else 'says'} {expected:g}"


def _against(name: str, value: object, relation: str, other: object) -> str:
    shown = [f"{one:g}" if isinstance(one, int | float) else str(one) for one in (value, other)]
    return f"{name} is {shown[0]}, {relation} {shown[1]}"
