"""The unit of a trace's times."""

import json
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.schema.traffic import FILE, POISSON, REPLAYED, TrafficConfig
from evaluate.measure.traffic.resolving import read_traffic
from evaluate.measure.traffic.times import say_unused
from tests.conftest import Run, evaluate_config
from tests.evaluate.measure.traffic.files import chat, lines

PLAIN = {"input_tokens": 7, "output_tokens": 3}
MOONCAKE = {"input_length": 7, "output_length": 3}
TARGETS = ("targets.ttft_ms=500", "targets.tpot_ms=50")


def trace(tmp_path: Path, record: dict[str, int], *times: float) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"timestamp": time} | record) + "\n" for time in times))
    return str(path)


def replayed(path: str, **options: str | bool) -> list[float | None]:
    config = TrafficConfig(source=FILE, path=path, arrivals=REPLAYED, **options)  # type: ignore[arg-type]
    return [conversation.arrival_s for conversation in read_traffic(config)]


def test_the_unit_is_the_formats_own_or_what_was_said(tmp_path: Path) -> None:
    assert replayed(trace(tmp_path, PLAIN, 0, 1, 2)) == [0, 1, 2]
    assert replayed(trace(tmp_path, MOONCAKE, 0, 1000, 2000)) == [0, 1, 2]
    assert replayed(trace(tmp_path, PLAIN, 0, 1000), time_unit="ms") == [0, 1]
    assert replayed(trace(tmp_path, MOONCAKE, 0, 1), time_unit="s") == [0, 1]
    assert replayed(trace(tmp_path, PLAIN, 0, 60), time_unit="s") == [0, 60]
    epoch = 1_700_000_000
    assert replayed(trace(tmp_path, PLAIN, epoch * 1e9, epoch * 1e9 + 1e9), time_unit="ns") == [
        epoch,
        epoch + 1,
    ]


@pytest.mark.parametrize(
    ("record", "times", "said"),
    [
        (PLAIN, (0, 1000, 2000), "3 requests arrive in 2,000 s, 0.001 a second"),
        (PLAIN, (1.7e12, 1.7e12 + 400, 1.7e12 + 1000), "0.002 a second"),
        (MOONCAKE, (0.0, 0.1, 0.2), "1e+04 a second"),
    ],
)
def test_times_of_another_unit_are_refused(
    tmp_path: Path, record: dict[str, int], times: tuple[float, ...], said: str
) -> None:
    with pytest.raises(QuantlineError) as error:
        replayed(trace(tmp_path, record, *times))
    assert said in str(error.value)
    assert "write traffic.time_unit=ms if they are milliseconds" in str(error.value)


def test_times_that_are_not_used_are_named_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def said(*overrides: str) -> str:
        config = evaluate_config("model=tiny", *overrides)
        say_unused(config, read_traffic(config.traffic))
        return capfd.readouterr().err

    path = f"traffic.path={trace(tmp_path, PLAIN, 0, 1, 2)}"
    assert said("scenario=traffic", path) == (
        "traffic.arrivals=poisson: the trace's times are not used; "
        "traffic.arrivals=replayed uses them\n"
    )
    assert "not used" not in said("scenario=traffic", path, "traffic.arrivals=replayed")
    assert said("scenario=capacity", path, *TARGETS) == ""
    timeless = tmp_path / "timeless.jsonl"
    timeless.write_text(json.dumps(PLAIN) + "\n")
    assert said("scenario=traffic", f"traffic.path={timeless}") == ""


def test_requests_at_one_moment_need_no_unit(tmp_path: Path) -> None:
    assert replayed(trace(tmp_path, PLAIN, 5, 5)) == [5, 5]


def test_a_replay_says_how_long_it_takes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    replayed(trace(tmp_path, PLAIN, 0, 1, 2))
    assert "3 requests arrive in 2 s, 1 a second" in capfd.readouterr().err


def test_only_files_have_a_unit(command_here: Run) -> None:
    options = ["scenario=traffic", "traffic=synthetic", "traffic.time_unit=ms"]
    result = command_here("evaluate", "model=tiny", *options)
    assert result.returncode == 2
    assert "traffic.time_unit=ms: works only with traffic=file" in result.stderr


UNUSABLE = [
    (["2024-05-01T00:00:00Z"] * 2, "t.jsonl:1: timestamp is '2024-05-01T00:00:00Z'; should be"),
    ([5, -1], "t.jsonl:2: timestamp is -1; should be"),
    ([5, 4], "t.jsonl:2: its timestamp is before that of the request before it; sort the file"),
    ([5, None], "t.jsonl:2: there is no timestamp; 1 of 2 requests have one, and all or none"),
]


@pytest.mark.parametrize(("times", "message"), UNUSABLE)
@pytest.mark.parametrize(
    "record",
    [
        PLAIN,
        {"prompt": "Hi", "output_tokens": 3},
        {"prompt": "Hi", "output_tokens_count": 3},
        chat("Hi", "Hello"),
        {"messages": [{"role": "user", "content": "Hi"}], "output_tokens": 3},
    ],
)
def test_times_that_cannot_be_replayed_are_refused_for_a_replay_alone(
    tmp_path: Path,
    record: dict[str, object],
    times: list[object],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = lines(tmp_path / "t.jsonl", *(record | {"timestamp": time} for time in times))
    with pytest.raises(QuantlineError) as error:
        replayed(str(path))
    assert message in str(error.value)
    read = read_traffic(TrafficConfig(source=FILE, path=str(path), arrivals=POISSON))
    said = capfd.readouterr().err
    assert f"{path}: is read as a file without times. {tmp_path}/{message}" in said
    assert said.count("\n") == 1
    timeless = lines(tmp_path / "timeless.jsonl", record, record)
    assert read == read_traffic(TrafficConfig(source=FILE, path=str(timeless)))


def test_dates_that_cannot_be_read_are_refused_for_a_replay_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\ntoday,7,3\n")
    with pytest.raises(QuantlineError, match="should be a date and time"):
        replayed(str(path))
    (read,) = read_traffic(TrafficConfig(source=FILE, path=str(path)))
    assert read.arrival_s is None


def test_a_bad_time_among_good_ones_is_a_bad_record(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path / "t.jsonl", *({"timestamp": time} | PLAIN for time in (1, "x", 2)))
    config = TrafficConfig(source=FILE, path=str(path), skip_bad=True)
    assert [each.arrival_s for each in read_traffic(config)] == [1, 2]
    assert "1 of 3 records are bad: left out" in capfd.readouterr().err
    assert replayed(str(path), skip_bad=True) == [1, 2]
