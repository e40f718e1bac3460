"""From conversations to requests: lengths, choice, limits, prefixes and turns."""

import itertools
import json
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from conf.errors import QuantlineError
from conf.schema.commands import EvaluateConfig
from conf.schema.load import ScenarioConfig
from conf.schema.traffic import LengthsConfig, TrafficConfig, TrafficLoad
from evaluate.measure.traffic.arrivals import arrival_times
from evaluate.measure.traffic.resolved import read_resolved
from evaluate.measure.traffic.resolving import read_traffic, with_traffic
from evaluate.measure.traffic.synthetic import length
from evaluate.measure.workload import shortened, traffic_load, warm_up
from evaluate.results.row_types import WorkloadSettings
from tests.conftest import evaluate_config

CONTEXT = 200
SHORT = ("traffic.input.median=20", "traffic.input.high=40", "traffic.output.high=150")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model without a tokenizer, as for random weights."""
    config = {"max_position_embeddings": CONTEXT, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def resolved(folder: Path, *overrides: str) -> tuple[EvaluateConfig, ScenarioConfig, TrafficLoad]:
    config = evaluate_config("model=tiny", "scenario=traffic", *overrides)
    config = with_traffic(config, read_traffic(config.traffic), folder)
    scenario = config.scenario["traffic"]
    assert scenario.traffic is not None
    return config, scenario, scenario.traffic


def requests_file(folder: Path, *records: dict[str, Any]) -> str:
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"traffic.path={path}"


def test_synthetic_requests_have_the_lengths_that_were_asked_for(folder: Path) -> None:
    options = ("traffic.input.distribution=fixed", "traffic.input.median=20", "traffic.requests=50")
    config, scenario, traffic = resolved(
        folder, *options, "traffic.output.distribution=uniform", "traffic.output.low=3",
        "traffic.output.high=5", "targets.ttft_ms=300",
    )  # fmt: skip
    assert (scenario.requests, scenario.rate, scenario.concurrency) == (50, 4.0, None)
    assert (scenario.ttft_ms, scenario.tpot_ms) == (300, 50)
    assert (traffic.tokens, traffic.input_tokens_mean) == ("given", 20)
    assert config.engine.options["enable_prefix_caching"] is True
    load = traffic_load(scenario, read_resolved(traffic.sha256), "traffic", 0, 1000)
    assert {len(request.prompt) for request in load.requests} == {20}
    assert {request.output_tokens for request in load.requests} == {3, 4, 5}
    assert load.shares_prefixes
    assert not load.takes_turns


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["scenario=[interactive,traffic]"], True),
        (["scenario=traffic"], False),
        (["scenario=[interactive,traffic]", "traffic.prefix_caching=false"], False),
        (["scenario=[interactive,traffic]", "engine.enable_prefix_caching=true"], False),
    ],
)
def test_scenarios_that_run_with_the_cache_of_traffic_are_named(
    folder: Path, capfd: pytest.CaptureFixture[str], options: list[str], names: bool
) -> None:
    resolved(folder, "traffic.requests=3", *SHORT, *options)
    assert ("interactive will run with it" in capfd.readouterr().err) == names


def test_lognormal_lengths_have_their_median_and_stay_within_limits() -> None:
    config, generator = LengthsConfig(median=100, sigma=1.0, low=20, high=900), random.Random(1)
    drawn = [length(config, generator) for _ in range(4000)]
    assert statistics.median(drawn) == pytest.approx(100, rel=0.1)
    assert (min(drawn), max(drawn)) == (20, 900)


def test_turns_repeat_the_conversation_and_wait_for_their_answers(folder: Path) -> None:
    fixed = [f"traffic.{side}.distribution=fixed" for side in ("input", "output")]
    lengths = ("traffic.input.median=10", "traffic.output.median=5", "traffic.prefix_tokens=16")
    _, scenario, traffic = resolved(
        folder, *fixed, *lengths, "traffic.turns=3", "traffic.requests=6", "traffic.pause_s=0.5"
    )
    load = traffic_load(scenario, read_resolved(traffic.sha256), "traffic", 0, 1000)
    first, second, third, other, *_ = load.requests
    assert [len(request.prompt) for request in (first, second, third)] == [26, 41, 56]
    assert third.prompt[:26] == first.prompt
    assert (second.after, second.arrival_s, third.after) == (0, 0.5, 1)
    assert (other.after, other.prompt[:16]) == (None, first.prompt[:16])
    assert other.prompt[16:] != first.prompt[16:]
    assert other.arrival_s > 0
    # The second and third turn repeat 26 and 41 tokens; the second conversation shares 16.
    assert traffic.reusable_share == pytest.approx((2 * (26 + 41) + 16) / (2 * (26 + 41 + 56)))


def test_texts_have_tokens_of_the_tokenizer_or_of_their_characters(folder: Path) -> None:
    path = requests_file(folder, {"text": "a function that returns", "output_tokens": 3})
    _, _, estimated = resolved(folder, path)
    assert (estimated.tokens, estimated.input_tokens_mean) == ("characters", 6)
    words = {"a": 5, "function": 6, "that": 7, "returns": 8}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    _, scenario, counted = resolved(folder, path)
    assert (counted.tokens, counted.input_tokens_mean) == ("tokenizer", 4)
    load = traffic_load(scenario, read_resolved(counted.sha256), "traffic", 0, 1000)
    assert load.requests[0].prompt == [5, 6, 7, 8]


def test_conversations_that_are_too_long_are_left_out_and_counted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    records = [{"input_tokens": size, "output_tokens": 50} for size in (10, 151, 150, 5000)]
    path = requests_file(folder, *records)
    _, scenario, traffic = resolved(folder, path)
    assert (traffic.conversations, traffic.left_out, traffic.longest_tokens) == (2, 2, CONTEXT)
    assert scenario.tokens == CONTEXT
    assert "2 conversations are too long: left out" in capfd.readouterr().err
    _, _, cut = resolved(folder, path, "traffic.max_output_tokens=49")
    assert (cut.left_out, cut.output_tokens_mean) == (1, 49)
    with pytest.raises(QuantlineError, match="none of its 4 conversations fits into 5 tokens"):
        resolved(folder, path, "traffic.max_input_tokens=5")


def test_turns_that_are_left_out_are_counted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = [{"from": who, "value": "a" * 160} for who in ("human", "gpt") * 4]
    path = requests_file(folder, {"conversations": texts}, {"conversations": texts[:2]})
    resolved(folder, path)
    assert "traffic=file: 3 turns beyond traffic.turns=1 are left out" in capfd.readouterr().err
    # Two turns have 160 of 200 tokens.
    _, _, traffic = resolved(folder, path, "traffic.turns=3")
    assert (traffic.requests, traffic.left_out) == (3, 0)
    output = capfd.readouterr().err
    assert "traffic=file: 1 turns beyond traffic.turns=3 are left out" in output
    assert "traffic=file: 1 turns of longer conversations are too long: left out" in output
    resolved(folder, path, "traffic.turns=4", "traffic.requests=1")
    assert "turns" not in capfd.readouterr().err.replace("traffic.turns", "")


def test_a_trace_is_replayed_and_other_arrivals_are_drawn(folder: Path) -> None:
    records = [
        {"timestamp": 10.0 + moment, "input_tokens": 5, "output_tokens": 2} for moment in (0, 3, 4)
    ]
    path = requests_file(folder, *records)
    _, scenario, traffic = resolved(
        folder, path, "traffic.arrivals=replayed", "traffic.speed=2", "traffic.requests=3"
    )
    assert (scenario.rate, scenario.concurrency) == (None, None)
    load = traffic_load(scenario, read_resolved(traffic.sha256), "traffic", 0, 1000)
    assert [request.arrival_s for request in load.requests] == [0, 1.5, 2]
    _, closed, _ = resolved(folder, path, "traffic.arrivals=closed", "traffic.concurrency=2")
    load = traffic_load(closed, read_resolved(traffic.sha256), "traffic", 0, 1000)
    assert (load.at_once, load.takes_turns, load.is_open) == (2, True, False)
    requests_file(folder, {"timestamp": 1, "prompt": "Hi"}, {"timestamp": 3, "prompt": "Hi"})
    resolved(folder, path, "traffic.arrivals=replayed")
    requests_file(folder, {"input_tokens": 5, "output_tokens": 2})
    with pytest.raises(QuantlineError, match="have no timestamps"):
        resolved(folder, path, "traffic.arrivals=replayed")


def test_older_rows_of_whole_conversations_are_another_workload(folder: Path) -> None:
    closed = ("traffic.arrivals=closed", "traffic.requests=4", *SHORT)
    for options, is_marked in (
        (closed, False),
        ((*closed, "traffic.turns=2"), True),
        (("traffic.turns=2", "traffic.requests=4", *SHORT), False),
    ):
        _, scenario, _ = resolved(folder, *options)
        for settings in (scenario.recorded(), scenario.identity()):
            assert ("whole_conversations" in settings["traffic"]) == is_marked


@pytest.mark.parametrize(("arrivals", "variation"), [("poisson", 1.0), ("bursty", 2.0)])
def test_arrivals_have_the_rate_and_variation_that_were_asked_for(
    arrivals: str, variation: float
) -> None:
    traffic = TrafficLoad(arrivals=arrivals, burstiness=0.25)
    scenario = ScenarioConfig(from_traffic=True, traffic=traffic, rate=50.0)
    times = arrival_times(8000, scenario, [], random.Random(2))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert statistics.stdev(gaps) * 50 == pytest.approx(variation, rel=0.15)


@pytest.mark.parametrize(("arrivals", "turns"), [("poisson", 1), ("bursty", 1), ("poisson", 3)])
def test_all_rates_of_a_search_have_one_pattern_of_arrivals(
    folder: Path, arrivals: str, turns: int
) -> None:
    config = evaluate_config(
        "model=tiny", "scenario=capacity", "targets.ttft_ms=500", "targets.tpot_ms=20",
        "traffic.requests=40", f"traffic.arrivals={arrivals}", f"traffic.turns={turns}", *SHORT,
    )  # fmt: skip
    config = with_traffic(config, read_traffic(config.traffic), folder)
    search = config.scenario["capacity"]
    assert search.traffic is not None
    conversations = read_resolved(search.traffic.sha256)

    def times(rate: float, requests: int, repeat: int = 0) -> list[float]:
        trial = replace(search, rate=rate, requests=requests)
        load = traffic_load(trial, conversations, "capacity", repeat, 1000)
        return [request.arrival_s for request in load.requests if request.after is None]

    slow = times(10.0, 90)
    fast = times(40.0, 90)
    assert fast == pytest.approx([moment / 4 for moment in slow])
    assert times(10.0, 90, repeat=1) != slow
    longer = times(10.0, 150)[: len(slow)]
    assert longer == pytest.approx([moment * longer[1] / slow[1] for moment in slow])
    # n requests take n / rate; the last of them begins one gap before that.
    assert 0.7 * 9 < slow[-1] < 9
    for requests in range(60, 240, 30):
        pattern = times(1.0, requests)
        assert pattern[-1] < requests


def test_runs_share_requests_but_neither_times_nor_cached_prefixes(folder: Path) -> None:
    _, scenario, traffic = resolved(folder, "traffic.requests=4", *SHORT)
    conversations = read_resolved(traffic.sha256)
    one, other = (traffic_load(scenario, conversations, "traffic", n, 1000) for n in (0, 1))
    assert [r.prompt for r in one.requests] == [r.prompt for r in other.requests]
    assert [r.arrival_s for r in one.requests] != [r.arrival_s for r in other.requests]
    again = traffic_load(scenario, conversations, "traffic", 0, 1000)
    assert [r.arrival_s for r in one.requests] == [r.arrival_s for r in again.requests]
    for later in (other, again):
        assert not {r.salt for r in one.requests} & {r.salt for r in later.requests}
    longer = traffic_load(replace(scenario, requests=9), conversations, "traffic", 0, 1000)
    assert len(longer.requests) == 9
    assert longer.requests[4].prompt == longer.requests[0].prompt
    assert len({request.salt for request in longer.requests}) == 3


def test_repeats_of_a_search_begin_at_different_conversations(folder: Path) -> None:
    targets = ("targets.ttft_ms=500", "targets.tpot_ms=50")
    config = evaluate_config(
        "model=tiny", "scenario=[traffic,capacity]", "traffic.requests=40", *targets, *SHORT,
        "engine.enable_prefix_caching=false",
    )  # fmt: skip
    config = with_traffic(config, read_traffic(config.traffic), folder)
    search, run = config.scenario["capacity"], config.scenario["traffic"]
    assert search.traffic is not None
    assert run.traffic is not None
    assert "begins_elsewhere" in search.identity()["traffic"]
    assert "begins_elsewhere" not in run.identity()["traffic"]
    assert not search.traffic.prefix_caching
    conversations = read_resolved(search.traffic.sha256)

    def sent(repeat: int, rate: float = 1.0) -> list[list[int]]:
        trial = replace(search, rate=rate, requests=10)
        load = traffic_load(trial, conversations, f"capacity at {rate}", repeat, 1000)
        return [request.prompt for request in load.requests]

    assert sent(0) == sent(0, rate=2.0)
    assert sent(1) == sent(1, rate=2.0)
    distinct = {tuple(prompt) for repeat in range(3) for prompt in sent(repeat)}
    assert len(distinct) > 28
    whole = traffic_load(replace(search, rate=1.0, requests=40), conversations, "x", 1, 1000)
    assert len({tuple(request.prompt) for request in whole.requests}) == 40
    assert len({request.salt for request in whole.requests}) == 1


def test_a_search_over_a_trace_with_times_begins_at_its_beginning(folder: Path) -> None:
    records = [{"timestamp": n, "input_tokens": 5 + n, "output_tokens": 2} for n in range(9)]
    path = requests_file(folder, *records)
    config = evaluate_config(
        "model=tiny", "scenario=capacity", path, "targets.ttft_ms=500", "targets.tpot_ms=50"
    )
    config = with_traffic(config, read_traffic(config.traffic), folder)
    search = config.scenario["capacity"]
    assert search.traffic is not None
    assert "begins_elsewhere" not in search.identity()["traffic"]
    trial = replace(search, rate=1.0, requests=3)
    load = traffic_load(trial, read_resolved(search.traffic.sha256), "x", 1, 1000)
    assert [len(request.prompt) for request in load.requests] == [5, 6, 7]


def test_a_warm_up_sends_short_answers_at_once(folder: Path) -> None:
    _, scenario, traffic = resolved(folder, "traffic.requests=4", *SHORT)
    load = traffic_load(warm_up(scenario), read_resolved(traffic.sha256), "traffic", -1, 1000)
    short = shortened(load)
    assert {request.arrival_s for request in short.requests} == {0.0}
    assert max(request.output_tokens for request in short.requests) <= 128


def test_answers_without_a_length_get_one_and_are_counted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = requests_file(folder, {"prompt": "Hi"}, {"prompt": "Hi", "output_tokens": 3})
    fixed = ("traffic.output.distribution=fixed", "traffic.output.median=9")
    _, _, traffic = resolved(folder, path, *fixed)
    assert traffic.output_tokens_mean == (9 + 3) / 2
    assert (
        f"{path}: 1 of 2 requests do not say how long their answer is; it has 9 tokens "
        "(traffic.output)"
    ) in capfd.readouterr().err
    options = (path, "traffic.output.median=60", "traffic.output.high=180")
    drawn = [resolved(folder, *options, f"traffic.seed={seed}")[2] for seed in (0, 0, 1)]
    means = [traffic.output_tokens_mean for traffic in drawn]
    assert means[0] == means[1] != means[2]
    assert "it has 60 tokens in the median" in capfd.readouterr().err
    resolved(folder, path, "traffic.output.distribution=uniform", "traffic.output.high=180")
    assert "it has 1 to 180 tokens" in capfd.readouterr().err


KEY_OF_EARLIER_VERSIONS = (
    *("source", "sha256", "arrivals", "burstiness", "speed", "pause_s", "prefix_caching", "tokens"),
    *("conversations", "requests", "left_out", "longest_tokens", "input_tokens_mean"),
    *("output_tokens_mean", "reusable_share"),
)


def test_drawn_lengths_that_are_sent_are_recorded_and_in_no_key(folder: Path) -> None:
    records = [{"input_tokens": n} for n in (5, 6, 500)] + [{"input_tokens": 7, "output_tokens": 1}]
    path = requests_file(folder, *records)
    fixed = ("traffic.output.distribution=fixed", "traffic.output.median=9")
    _, scenario, traffic = resolved(folder, path, *fixed)
    assert (traffic.requests, traffic.left_out, traffic.drawn_answers) == (3, 1, 2)
    assert scenario.recorded()["traffic"]["drawn_answers"] == 2
    assert tuple(scenario.identity()["traffic"]) == KEY_OF_EARLIER_VERSIONS
    requests_file(folder, records[-1])
    _, given, _ = resolved(folder, path)
    assert "drawn_answers" not in given.recorded()["traffic"]
    content = scenario.recorded()
    own = WorkloadSettings.model_validate(content)
    del content["traffic"]["drawn_answers"]
    earlier = WorkloadSettings.model_validate(content)
    assert own.identity() == earlier.identity() == earlier.content()


def test_bad_records_of_the_options_file_are_left_out(folder: Path) -> None:
    path = requests_file(folder, {"input_tokens": 5, "output_tokens": 3}, {"input_tokens": 0})
    with pytest.raises(QuantlineError, match=r"traffic\.skip_bad=true leaves them out"):
        resolved(folder, path)
    _, _, traffic = resolved(folder, path, "traffic.skip_bad=true")
    assert traffic.requests == 1


def test_lengths_for_answers_that_have_one_are_refused(folder: Path) -> None:
    path = requests_file(folder, {"prompt": "Hi", "output_tokens": 3})
    with pytest.raises(QuantlineError, match=r"traffic\.output: works only .* all answers of"):
        resolved(folder, path, "traffic.output.median=9")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("traffic.block_tokens=16",), "traffic.block_tokens=16: works only with traffic=file"),
        (
            ("traffic.path=x", "traffic.format=vllm", "traffic.block_tokens=16"),
            "works only with traffic=file and traffic.format=mooncake",
        ),
        (("traffic=file",), "traffic=file needs traffic.path=FILE"),
        (("traffic=synthetic", "traffic.path=x"), "works only with traffic=file"),
        (("traffic.arrivals=replayed",), "synthetic requests have no times of arrival"),
        (("traffic.input.low=9", "traffic.input.high=8"), "low=9 is above high=8"),
        (("traffic.input.median=9000",), "median=9000 is not between low=1 and high=4096"),
        (("scenario.traffic.rate=3",), "scenario: from_traffic has no rate; see traffic.NAME"),
        (("scenario=capacity",), "scenario=capacity: give targets.ttft_ms and targets.tpot_ms"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(QuantlineError) as error:
        evaluate_config("model=tiny", "scenario=traffic", *overrides)
    assert message in str(error.value)


def test_synthetic_traffic_is_the_same_for_the_same_seed() -> None:
    config = TrafficConfig(requests=20)
    assert read_traffic(config) == read_traffic(replace(config))
    assert read_traffic(config) != read_traffic(replace(config, seed=1))
