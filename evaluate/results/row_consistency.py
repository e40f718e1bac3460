"""Whether the fields of a row agree with each other, where one follows from others.

A row keeps times, counts and rates of the same run, so that most of its figures can be worked out
from others. A figure that was damaged or typed in by hand contradicts them.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from evaluate.accuracy.verdicts import BROKEN, BROKEN_DIVERGENCE, BROKEN_RECOVERY
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
TASK = "lm_eval:"
TASK_VALUES = ("metric", "questions", "score", "score_low", "interval", "cut_questions")
PAIRED_VALUES = ("difference", "difference_low", "difference_high", "lost", "gained", "p_value")
JUDGED = ("perplexity", "score", "verdict", "tokens")
INTERVALS = ("recovery", "divergence", "score", "difference")

Values = dict[str, Any]


def contradiction(row: dict[str, Any]) -> str:
    """The first thing that cannot be so, with the figures; empty for a row that agrees. The row
    has passed evaluate.results.row_types."""
    checks = {"speed": _speed, "accuracy": _accuracy}
    found = checks[row["kind"]](row) if row["kind"] in checks else iter(())
    return next(found, "")


def _speed(row: dict[str, Any]) -> Iterator[str]:
    values, settings, limit = (row.get(name, {}) for name in ("values", "settings", "limit"))
    requests = row.get("requests", {})
    for name in WITH_VALUES if values else ():
        if name not in row:
            yield f"the field {name} is missing"
    yield from _settings(settings)
    if limit.get("rates") == "measured" and "bandwidth_gb_s" not in limit:
        yield "limit.rates is measured, and limit.bandwidth_gb_s is missing"
    for names in ORDERED:
        yield from _ordered(values, [name for name in names if name in values])
    yield from _counts(row, values, settings, requests)
    yield from _rates(values, settings)
    yield from _times(values, settings, requests)
    yield from _limit_shares(values, limit)
    yield from _hardware(row, values, settings, limit)


def _settings(settings: Values) -> Iterator[str]:
    kinds = [name for name in ("batch", "concurrency", "rate") if name in settings]
    if len(kinds) > 1:
        yield f"settings has {' and '.join(kinds)}: a load has one of them"
    for name in TOKENS:
        if kinds and name not in settings:
            yield f"settings.{name} is missing"


def _ordered(values: Values, names: list[str]) -> Iterator[str]:
    for one, other in itertools.pairwise(names):
        if values[one] > values[other] * (1 + ROUNDING) + CLOCK_S:
            yield _against(f"values.{one}", values[one], f"above values.{other}", values[other])


def _counts(
    row: dict[str, Any], values: Values, settings: Values, requests: Values
) -> Iterator[str]:
    """Tokens and requests, by what was asked for and by what each request had."""
    counted = {
        name: found for name in ("input_tokens", "output_tokens") if (found := requests.get(name))
    }
    for name, found in counted.items():
        total = sum(int(tokens) * count for tokens, count in found.items())
        yield from _same(f"values.{name}", values.get(name), f"requests.{name}", total)
        if not row.get("invalid") and name in settings and set(found) != {str(settings[name])}:
            lengths = ", ".join(sorted(found, key=int)[:3])
            yield _against(f"requests.{name}", lengths, f"but settings.{name}", settings[name])
    answered = [sum(found.values()) for found in counted.values()]
    if requests.get("times_s"):
        answered.append(sum(part[3] for part in requests["times_s"]))
    asked = settings.get("batch", settings.get("requests"))
    failed = values.get("failed_requests", 0)
    for count in answered:
        yield from _same("requests answered", count, "requests answered", answered[0])
        if asked is not None:
            yield from _same("answered and failed requests", count + failed, "settings", asked)
    if failed and not row.get("invalid"):
        yield f"values.failed_requests is {failed:g}, and the run is not marked invalid"
    hits, inputs = values.get("prefix_hits", 0), values.get("input_tokens")
    if inputs and not row.get("invalid") and hits > MOST_HITS * inputs:
        yield f"values.prefix_hits is {hits:g} of {inputs:g}, and the run is not marked invalid"
    if not answered and asked and not failed and not row.get("invalid"):
        for name in TOKENS:
            if name in values and name in settings:
                total = asked * settings[name]
                yield from _same(f"values.{name}", values[name], "settings", total)


def _rates(values: Values, settings: Values) -> Iterator[str]:
    """Each rate is a number of tokens or requests over a time that is kept, too."""
    latency, last = values.get("latency_s"), values.get("ttft_last_s")
    count = settings.get("batch", settings.get("requests"))
    inputs, outputs = (
        values.get(name, count * settings[name] if count and name in settings else None)
        for name in TOKENS
    )
    is_batch = "batch" in settings
    decoding = None if latency is None or last is None else latency - last
    both = None if inputs is None or outputs is None else inputs + outputs
    yield from _rate(values, "generated_tokens_per_s", outputs, latency)
    yield from _rate(values, "overall_tokens_per_s", both, latency)
    if is_batch:
        yield from _rate(values, "input_tokens_per_s", inputs, last)
        if decoding is not None and latency is not None and decoding > 1e-3 * latency:
            # The difference of two rounded times.
            yield from _rate(values, "output_tokens_per_s", outputs, decoding, 1e-3)
            overlap, failed = values.get("overlap_share"), values.get("failed_requests")
            if outputs is not None and overlap is not None and failed is not None:
                after = outputs * (1 - overlap) - (count - failed)
                yield from _rate(values, "decode_tokens_per_s", after, decoding, 1e-3)
    elif "requests" in settings:
        yield from _rate(values, "output_tokens_per_s", outputs, latency)
    if count is not None and "failed_requests" in values:
        yield from _rate(values, "requests_per_s", count - values["failed_requests"], latency)
    yield from _rate(values, "joules_per_output_token", values.get("energy_j"), outputs)
    if count is not None and "good_share" in values:
        good = values["good_share"] * count
        yield from _rate(values, "goodput_requests_per_s", good, latency)


def _rate(
    values: Values, name: str, amount: float | None, over: float | None, tolerance: float = 0.0
) -> Iterator[str]:
    if amount is not None and over:
        yield from _same(f"values.{name}", values.get(name), "its parts", amount / over, tolerance)


def _times(values: Values, settings: Values, requests: Values) -> Iterator[str]:
    """Times by those of single requests, where the row keeps them."""
    yield from _pace(values, settings)
    times = requests.get("times_s")
    if not times:
        return
    for start, one, last, count in times:
        if not (start <= one <= last and count >= 1 and count == int(count)):
            yield f"requests.times_s holds [{start:g}, {one:g}, {last:g}, {count:g}]"
    if values.get("failed_requests"):
        return  # whose times are not kept
    begin = 0.0 if "batch" in settings else min(part[0] for part in times)
    end = max(part[2] for part in times)
    waits = [one - start for start, one, _, _ in times]
    expected = {
        "latency_s": end - begin,
        "ttft_first_s": min(waits),
        "ttft_last_s": max(waits),
    }
    tokens, many = settings.get("output_tokens", 1), sum(part[3] for part in times)
    if tokens > 1 and set(requests.get("output_tokens", {})) == {str(tokens)} and many <= MOST:
        paces = [
            (last - one) / (tokens - 1) for _, one, last, count in times for _ in range(int(count))
        ]
        expected["tpot_median_s"] = percentile(paces, 0.5)
        expected["tpot_p99_s"] = percentile(paces, PERCENT_99)
    for name, found in expected.items():
        clock = CLOCK_S + DIGITS * end
        yield from _same(f"values.{name}", values.get(name), "requests.times_s", found, 0, clock)


def _pace(values: Values, settings: Values) -> Iterator[str]:
    """No request of a batch takes longer for a token than the whole batch allows."""
    tokens = settings.get("output_tokens", 1)
    latency, first = values.get("latency_s"), values.get("ttft_first_s", values.get("ttft_last_s"))
    if tokens == 1 or "batch" not in settings or latency is None or first is None:
        return
    most = (latency - first) / (tokens - 1)
    for name in ("tpot_median_s", "tpot_p99_s"):
        if name in values and values[name] > most * (1 + 1e-3) + CLOCK_S:
            yield _against(f"values.{name}", values[name], "more than its run allows,", most)
        if name in values and settings["batch"] == 1 and values[name] < most / 2:
            yield _against(f"values.{name}", values[name], "less than its run tells,", most)


def _limit_shares(values: Values, limit: Values) -> Iterator[str]:
    """A share of the limit is its least seconds over the seconds that were measured."""
    latency, last = values.get("latency_s"), values.get("ttft_last_s")
    spent = {"prefill": last, "decode": None if None in (latency, last) else latency - last}  # type: ignore[operator]
    for phase, seconds in spent.items():
        least = limit.get(f"{phase}_s")
        if least is not None and seconds is not None and seconds > 1e-3 * (latency or 0):
            name = f"{phase}_share"
            yield from _same(f"limit.{name}", limit.get(name), "its parts", least / seconds, 1e-3)


def _hardware(row: Values, values: Values, settings: Values, limit: Values) -> Iterator[str]:
    """Memory by the lengths of the load and by the weights, clocks by the card's highest."""
    memory, environment = row.get("memory", {}), row.get("environment", {})
    lengths = [settings[name] for name in TOKENS if name in settings]
    held = memory.get("kv_cache_tokens")
    if held is not None and len(lengths) == 2:
        name = "kv_cache_requests"
        yield from _same(f"memory.{name}", memory.get(name), "its parts", held / sum(lengths))
    if "body_gb" in limit and "head_gb" in limit:
        name, read = "weights_read_gib", (limit["body_gb"] + limit["head_gb"]) * 1e9 / 2**30
        yield from _same(f"memory.{name}", memory.get(name), "limit's parts", read)
    clock, most = values.get("sm_clock_mhz"), environment.get("max_sm_clock_mhz")
    if clock and most and clock > 1.05 * most:
        yield _against("values.sm_clock_mhz", clock, "above the card's highest,", most)


def _accuracy(row: dict[str, Any]) -> Iterator[str]:
    values = row.get("values", {})
    if not any(name in values for name in JUDGED):
        yield f"values has none of {', '.join(JUDGED)}"
    if row["measure"].startswith(TASK):
        needed = (*TASK_VALUES, *(PAIRED_VALUES if "verdict" in values else ()))
        for name in needed:
            if name not in values:
                yield f"values.{name} is missing"
    for name in INTERVALS:
        yield from _interval(values, name)
    yield from _recovery(row["measure"], values)
    if "lost" in values and "gained" in values and "questions" in values:
        changed = values["lost"] + values["gained"]
        if changed > values["questions"]:
            yield _against(
                "values.lost and gained", changed, "above questions", values["questions"]
            )
    agreed, continued = values.get("agreed_tokens_mean"), values.get("continued_tokens")
    if agreed is not None and continued is not None and agreed > continued * (1 + ROUNDING):
        yield _against("values.agreed_tokens_mean", agreed, "above continued_tokens", continued)


def _interval(values: Values, name: str) -> Iterator[str]:
    middle = values.get(name, values.get(f"{name}_mean"))
    low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
    if low is None or high is None:
        return
    if low > high:
        yield _against(f"values.{name}_low", low, f"above values.{name}_high", high)
    room = INTERVAL * max(abs(low), abs(high))
    if middle is not None and not low - room <= middle <= high + room:
        yield f"values.{name} is {middle:g}, outside its interval from {low:g} to {high:g}"


def _recovery(measure: str, values: Values) -> Iterator[str]:
    recovery = values.get("recovery")
    verdict = values.get("verdict")
    if "original_perplexity" in values and "perplexity" in values:
        share = values["original_perplexity"] / values["perplexity"]
        yield from _same("values.recovery", recovery, "the perplexities", share, 1e-3)
    if values.get("original_score") and "score" in values:
        share = values["score"] / values["original_score"]
        yield from _same("values.recovery", recovery, "the scores", share, 1e-3)
    if "original_score" in values and "difference" in values and "score" in values:
        apart = values["score"] - values["original_score"]
        yield from _same("values.difference", values["difference"], "the scores", apart, 0, 1e-5)
    if verdict == BROKEN or verdict is None or measure.startswith(TASK):
        return
    if recovery is not None and recovery < BROKEN_RECOVERY:
        yield f"values.verdict is {verdict!r} with a recovery of {recovery:g}"
    if values.get("divergence_mean", 0) > BROKEN_DIVERGENCE:
        yield f"values.verdict is {verdict!r} with a divergence of {values['divergence_mean']:g}"


def _same(
    name: str,
    found: float | None,
    source: str,
    expected: float,
    relative: float = 0.0,
    absolute: float = 0.0,
) -> Iterator[str]:
    close = max(relative, ROUNDING)
    if found is not None and not math.isclose(found, expected, rel_tol=close, abs_tol=absolute):
        yield f"{name} is {found:g}, {source} {'say' if source[-1] == 's' else 'says'} {expected:g}"


def _against(name: str, found: object, words: str, other: object) -> str:
    shown = [
        f"{value:g}" if isinstance(value, int | float) else str(value) for value in (found, other)
    ]
    return f"{name} is {shown[0]}, {words} {shown[1]}"
