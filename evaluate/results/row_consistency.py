"""Checks that the fields of a row are consistent with each other.

A row has times, counts and rates of the same run, so most values can be computed from others. A
value that was damaged or edited by hand contradicts them.
"""

import itertools
import math
import statistics
from collections.abc import Iterator

from evaluate.accuracy.verdicts import BROKEN, BROKEN_DIVERGENCE, BROKEN_RECOVERY
from evaluate.results.row_types import Limit, Requests, WorkloadSettings
from evaluate.results.row_values import QuickAccuracy, SpeedValues, TaskAccuracy
from evaluate.results.rows import AccuracyRow, Row, SpeedRow
from evaluate.results.summary import PERCENT_99, percentile

ROUNDING = 1e-5  # rows keep seven digits
CLOCK_S = 3e-6  # times of requests are kept to the microsecond
DIGITS = 2e-6  # and to seven digits
MOST = 100_000  # requests whose times are checked one by one
MOST_HITS = 0.02  # one in a hundred makes a run invalid; a prompt may be looked up twice
BLOCKS_APART = 1e-2  # tolerance: blocks may differ in length by a token
LARGEST_GAIN = math.log(1e6)  # nats: the largest recovery that a row may have
INTERVAL = 0.02  # tolerance: a bootstrap interval may miss its own mean by this share
# Each value is at most the next one, if both are set.
ORDERED = (
    ("ttft_first_s", "ttft_last_s", "latency_s"),
    ("ttft_first_s", "ttft_median_s", "ttft_p99_s", "ttft_last_s"),
    ("request_latency_median_s", "request_latency_p99_s", "latency_s"),
    ("tpot_median_s", "tpot_p99_s", "latency_s"),
    ("gap_median_s", "gap_p99_s", "latency_s"),
    ("decode_tokens_per_s", "output_tokens_per_s"),
    ("goodput_requests_per_s", "requests_per_s"),
)
WITH_VALUES = ("settings", "environment", "invalid")  # fields that decide whether a run is valid
TOKENS = ("input_tokens", "output_tokens")
JUDGED = ("perplexity", "score", "verdict", "tokens")
PAIRED = ("difference", "difference_low", "difference_high", "lost", "gained", "p_value")


def contradiction(row: Row) -> str:
    """The first contradiction, with the values; empty for a consistent row."""
    if isinstance(row, SpeedRow):
        return next(_speed_faults(row), "")
    if isinstance(row, AccuracyRow):
        return next(_accuracy_faults(row), "")
    return ""


def _speed_faults(row: SpeedRow) -> Iterator[str]:
    values, settings, limit = row.values, row.settings, row.limit
    for name in WITH_VALUES if values.names else ():
        if name not in row.names:
            yield f"the field {name} is missing"
    yield from _check_settings(settings)
    if limit.rates == "measured" and limit.bandwidth_gb_s is None:
        yield "limit.rates is measured, and limit.bandwidth_gb_s is missing"
    for names in ORDERED:
        yield from _check_order(values, names)
    yield from _check_counts(row)
    yield from _check_rates(values, settings)
    yield from _check_times(values, settings, row.requests)
    yield from _check_limit_shares(values, limit)
    yield from _check_hardware(row)


def _check_settings(settings: WorkloadSettings) -> Iterator[str]:
    kinds = [name for name in ("batch", "concurrency", "rate") if name in settings.names]
    if len(kinds) > 1:
        yield f"settings has {' and '.join(kinds)}: a workload has only one of them"
    for name in TOKENS:
        if kinds and name not in settings.names and settings.traffic is None:
            yield f"settings.{name} is missing"


def _check_order(values: SpeedValues, names: tuple[str, ...]) -> Iterator[str]:
    figures = [(name, value) for name in names if (value := values.figure(name)) is not None]
    for (one, smaller), (other, larger) in itertools.pairwise(figures):
        if smaller > larger * (1 + ROUNDING) + CLOCK_S:
            yield _message(f"values.{one}", smaller, f"above values.{other}", larger)


def _check_counts(row: SpeedRow) -> Iterator[str]:
    """Compares token and request counts with the settings and with each request's lengths."""
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
        yield from _check_equal(f"values.{name}", total, f"requests.{name}", counted)
        if not row.invalid and length is not None and set(lengths) != {str(length)}:
            first_lengths = ", ".join(sorted(lengths, key=int)[:3])
            yield _message(f"requests.{name}", first_lengths, f"but settings.{name}", length)
    if requests.times_s:
        answered.append(sum(int(count) for *_, count in requests.times_s))
    expected_requests, failed = settings.request_count, values.failed_requests or 0
    for count in answered:
        yield from _check_equal("requests answered", count, "requests answered", answered[0])
        if expected_requests is not None:
            yield from _check_equal(
                "answered and failed requests", count + failed, "settings", expected_requests
            )
    if failed and not row.invalid:
        yield f"values.failed_requests is {failed:g}, and the run is not marked invalid"
    hits, inputs = values.prefix_hits or 0, values.input_tokens
    counts_hits = inputs and not row.invalid and settings.traffic is None
    if counts_hits and hits > MOST_HITS * (inputs or 0):
        yield f"values.prefix_hits is {hits:g} of {inputs:g}, and the run is not marked invalid"
    if not answered and expected_requests and not failed and not row.invalid:
        for name, total, length in (
            ("input_tokens", values.input_tokens, settings.input_tokens),
            ("output_tokens", values.output_tokens, settings.output_tokens),
        ):
            if length is not None:
                yield from _check_equal(
                    f"values.{name}", total, "settings", expected_requests * length
                )


def _check_rates(values: SpeedValues, settings: WorkloadSettings) -> Iterator[str]:
    """Compares each rate with its token or request count divided by its time."""
    latency, last = values.latency_s, values.ttft_last_s
    count, failed = settings.request_count, values.failed_requests
    inputs = _total(values.input_tokens, count, settings.input_tokens)
    outputs = _total(values.output_tokens, count, settings.output_tokens)
    all_tokens = None if inputs is None or outputs is None else inputs + outputs
    yield from _check_rate(values, "generated_tokens_per_s", outputs, latency)
    yield from _check_rate(values, "overall_tokens_per_s", all_tokens, latency)
    if settings.batch is not None:
        yield from _check_rate(values, "input_tokens_per_s", inputs, last)
        yield from _check_decode_rates(values, settings.batch, outputs)
    elif settings.requests is not None:
        yield from _check_rate(values, "output_tokens_per_s", outputs, latency)
    if count is not None and failed is not None:
        yield from _check_rate(values, "requests_per_s", count - failed, latency)
    yield from _check_rate(values, "joules_per_output_token", values.energy_j, outputs)
    if count is not None and values.good_share is not None:
        yield from _check_rate(values, "goodput_requests_per_s", values.good_share * count, latency)


def _check_decode_rates(values: SpeedValues, batch: int, outputs: float | None) -> Iterator[str]:
    latency, last = values.latency_s, values.ttft_last_s
    if latency is None or last is None or latency - last <= 1e-3 * latency:
        return
    # The difference of two rounded times.
    decoding = latency - last
    yield from _check_rate(values, "output_tokens_per_s", outputs, decoding, 1e-3)
    overlap, failed = values.overlap_share, values.failed_requests
    if outputs is not None and overlap is not None and failed is not None:
        decoded_tokens = outputs * (1 - overlap) - (batch - failed)
        yield from _check_rate(values, "decode_tokens_per_s", decoded_tokens, decoding, 1e-3)


def _total(tokens: float | None, requests: int | None, length: int | None) -> float | None:
    """Tokens of all requests: as measured, or else computed from the settings."""
    if tokens is not None:
        return tokens
    return None if requests is None or length is None else float(requests * length)


def _check_rate(
    values: SpeedValues, name: str, amount: float | None, over: float | None, tolerance: float = 0.0
) -> Iterator[str]:
    if amount is not None and over:
        rate = values.figure(name)
        yield from _check_equal(f"values.{name}", rate, "its parts", amount / over, tolerance)


def _check_times(
    values: SpeedValues, settings: WorkloadSettings, requests: Requests
) -> Iterator[str]:
    """Compares times with those of single requests, if the row has them."""
    yield from _check_pace(values, settings)
    times = requests.times_s
    if not times:
        return
    for start, first, last, count in times:
        if not (start <= first <= last and count >= 1 and count == int(count)):
            yield f"requests.times_s holds [{start:g}, {first:g}, {last:g}, {count:g}]"
    if values.failed_requests:
        return  # the times of failed requests are not stored
    begin = 0.0 if settings.batch is not None else min(start for start, *_ in times)
    end = max(last for _, _, last, _ in times)
    waits = [first - start for start, first, _, _ in times]
    expected = {
        "latency_s": end - begin,
        "ttft_first_s": min(waits),
        "ttft_last_s": max(waits),
    }
    tokens, request_count = settings.output_tokens or 1, sum(count for *_, count in times)
    if tokens > 1 and set(requests.output_tokens) == {str(tokens)} and request_count <= MOST:
        paces = [
            (last - first) / (tokens - 1)
            for _, first, last, count in times
            for _ in range(int(count))
        ]
        expected["tpot_median_s"] = percentile(paces, 0.5)
        expected["tpot_p99_s"] = percentile(paces, PERCENT_99)
    for name, time in expected.items():
        clock = CLOCK_S + DIGITS * end
        yield from _check_equal(
            f"values.{name}", values.figure(name), "requests.times_s", time, 0, clock
        )


def _check_pace(values: SpeedValues, settings: WorkloadSettings) -> Iterator[str]:
    """Checks that the time per token of a request fits into the batch's latency."""
    tokens, latency = settings.output_tokens or 1, values.latency_s
    first = values.ttft_last_s if values.ttft_first_s is None else values.ttft_first_s
    if tokens == 1 or settings.batch is None or latency is None or first is None:
        return
    longest_pace = (latency - first) / (tokens - 1)
    for name, pace in (("tpot_median_s", values.tpot_median_s), ("tpot_p99_s", values.tpot_p99_s)):
        if pace is not None and pace > longest_pace * (1 + 1e-3) + CLOCK_S:
            yield _message(f"values.{name}", pace, "more than its run allows,", longest_pace)
        if pace is not None and settings.batch == 1 and pace < longest_pace / 2:
            yield _message(f"values.{name}", pace, "less than its run tells,", longest_pace)


def _check_limit_shares(values: SpeedValues, limit: Limit) -> Iterator[str]:
    """Compares each share of the limit with the limit's seconds over the measured seconds."""
    latency, last = values.latency_s, values.ttft_last_s
    decoding = None if latency is None or last is None else latency - last
    for phase, seconds, least, share in (
        ("prefill", last, limit.prefill_s, limit.prefill_share),
        ("decode", decoding, limit.decode_s, limit.decode_share),
    ):
        if least is not None and seconds is not None and seconds > 1e-3 * (latency or 0):
            yield from _check_equal(
                f"limit.{phase}_share", share, "its parts", least / seconds, 1e-3
            )


def _check_hardware(row: SpeedRow) -> Iterator[str]:
    """Compares memory with the workload's lengths and the weights, and clocks with the card's
    highest."""
    memory, settings, limit = row.memory, row.settings, row.limit
    cache_tokens, inputs, outputs = (
        memory.kv_cache_tokens,
        settings.input_tokens,
        settings.output_tokens,
    )
    if cache_tokens is not None and inputs is not None and outputs is not None:
        fitting = cache_tokens / (inputs + outputs)
        yield from _check_equal(
            "memory.kv_cache_requests", memory.kv_cache_requests, "its parts", fitting
        )
    if limit.body_gb is not None and limit.head_gb is not None:
        weights = (limit.body_gb + limit.head_gb) * 1e9 / 2**30
        yield from _check_equal(
            "memory.weights_read_gib", memory.weights_read_gib, "limit's parts", weights
        )
    clock, highest_clock = row.values.sm_clock_mhz, row.environment.max_sm_clock_mhz
    if clock and highest_clock and clock > 1.05 * highest_clock:
        yield _message("values.sm_clock_mhz", clock, "above the card's highest,", highest_clock)


def _accuracy_faults(row: AccuracyRow) -> Iterator[str]:
    values = row.values
    low, high = values.recovery_low, values.recovery_high
    yield from _check_interval("recovery", values.recovery, low, high)
    if isinstance(values, QuickAccuracy):
        yield from _quick_faults(values)
    else:
        yield from _task_faults(values)


def _quick_faults(values: QuickAccuracy) -> Iterator[str]:
    if values.names.isdisjoint(JUDGED):
        yield f"values has none of {', '.join(JUDGED)}"
    low, high = values.divergence_low, values.divergence_high
    yield from _check_interval("divergence", values.divergence_mean, low, high)
    recovery, verdict = values.recovery, values.verdict
    if values.original_perplexity is not None and values.perplexity is not None:
        share = values.original_perplexity / values.perplexity
        yield from _check_equal("values.recovery", recovery, "the perplexities", share, 1e-3)
    yield from _block_faults(values)
    agreed, continued = values.agreed_tokens_mean, values.continued_tokens
    if agreed is not None and continued is not None and agreed > continued * (1 + ROUNDING):
        yield _message("values.agreed_tokens_mean", agreed, "above continued_tokens", continued)
    if verdict == BROKEN or verdict is None:
        return
    if recovery is not None and recovery < BROKEN_RECOVERY:
        yield f"values.verdict is {verdict!r} with a recovery of {recovery:g}"
    divergence = values.divergence_mean or 0
    if divergence > BROKEN_DIVERGENCE:
        yield f"values.verdict is {verdict!r} with a divergence of {divergence:g}"


def _block_faults(values: QuickAccuracy) -> Iterator[str]:
    """Compares the values of blocks with their means, and with what the verdict allows."""
    losses, divergences = values.block_losses, values.block_divergences
    if len(losses) != len(divergences):
        yield _message(
            "the length of values.block_losses",
            len(losses),
            "that of values.block_divergences",
            len(divergences),
        )
        return
    if not losses:
        return
    loss = statistics.fmean(losses)
    if loss < -LARGEST_GAIN:
        yield _message("the mean of values.block_losses", loss, "below", -LARGEST_GAIN)
        return
    kept, divergence = math.exp(-loss), statistics.fmean(divergences)
    recovery, mean = values.recovery, values.divergence_mean
    yield from _check_equal("values.recovery", recovery, "values.block_losses", kept, BLOCKS_APART)
    yield from _check_equal("values.divergence_mean", mean, "its blocks", divergence, 0.05, 1e-4)
    if values.verdict != BROKEN and kept < (1 - BLOCKS_APART) * BROKEN_RECOVERY:
        yield f"values.verdict is {values.verdict!r}, and blocks say a recovery of {kept:g}"


def _task_faults(values: TaskAccuracy) -> Iterator[str]:
    for name in PAIRED if values.verdict is not None else ():
        if name not in values.names:
            yield f"values.{name} is missing"
    yield from _check_interval("score", values.score, values.score_low, values.score_high)
    low, high = values.difference_low, values.difference_high
    yield from _check_interval("difference", values.difference, low, high)
    if values.original_score:
        share = values.score / values.original_score
        yield from _check_equal("values.recovery", values.recovery, "the scores", share, 1e-3)
    if values.original_score is not None:
        score_difference = values.score - values.original_score
        yield from _check_equal(
            "values.difference", values.difference, "the scores", score_difference, 0, 1e-5
        )
    if values.scores:
        mean, count = statistics.fmean(values.scores), len(values.scores)
        yield from _check_equal("values.score", values.score, "values.scores", mean, 1e-3, 1e-6)
        yield from _check_equal("values.questions", values.questions, "values.scores", count)
    changed = (values.lost or 0) + (values.gained or 0)
    if changed > values.questions:
        yield _message("values.lost and gained", changed, "above questions", values.questions)


def _check_interval(
    name: str, estimate: float | None, low: float | None, high: float | None
) -> Iterator[str]:
    if low is None or high is None:
        return
    if low > high:
        yield _message(f"values.{name}_low", low, f"above values.{name}_high", high)
    tolerance = INTERVAL * max(abs(low), abs(high))
    if estimate is not None and not low - tolerance <= estimate <= high + tolerance:
        yield f"values.{name} is {estimate:g}, outside its interval from {low:g} to {high:g}"


def _check_equal(
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


def _message(name: str, value: object, relation: str, other: object) -> str:
    numbers = [
        f"{number:g}" if isinstance(number, int | float) else str(number)
        for number in (value, other)
    ]
    return f"{name} is {numbers[0]}, {relation} {numbers[1]}"
