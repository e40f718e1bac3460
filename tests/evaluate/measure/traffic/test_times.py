"""The unit of a trace's times."""

import json
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.schema.traffic import FILE, REPLAYED, TrafficConfig
from evaluate.measure.traffic.resolving import read_traffic
from evaluate.measure.traffic.times import say_unused
from tests.conftest import Run, evaluate_config

PLAIN = {"input_tokens": 7, "output_tokens": 3}
MOONCAKE = {"input_length": 7, "output_length": 3}
TARGETS = ("targets.ttft_ms=500", "targets.tpot_ms=50")


def trace(tmp_path: Path, record: dict[str, int], *times: float) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"timestamp": time} | record) + "\n" for time in times))
    return str(path)


def replayed(path: str, **options: str) -> list[float | None]:
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
