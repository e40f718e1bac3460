"""A capacity search from the command to the report, against a server whose limit is known."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluate.results.capacity_search import Trial, found
from evaluate.results.late_requests import allowed_misses
from evaluate.results.results_file import read
from evaluate.results.rows import TrialRow
from tests.conftest import Run
from tests.evaluate.measure.stand_in_server import StandIn, running

# Two answers at once of 25 ms each: 80 a second, and TTFT grows without end above that.
SATURATED = StandIn(first_s=0.005, pace_s=0.005, slots=2)
LIMIT = 80.0
SEARCH = (
    *("scenario=capacity", "targets.ttft_ms=200", "targets.tpot_ms=100", "repeats=2"),
    *("capacity.seconds=1", "capacity.least_requests=20", "capacity.resolution=0.5"),
    *("capacity.share=0.9", "traffic.requests=20"),
    *("traffic.input.median=8", "traffic.input.high=16"),
    *("traffic.output.distribution=fixed", "traffic.output.median=5"),
)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with running(SATURATED) as server:
        yield server


# Two answers at once, of 64 tokens each. Most of 24 that come at once wait for seconds; one that is
# alone has its first token soon.
REAL = (
    "engine=vllm_server",
    *("scenario=capacity", "targets.ttft_ms=500", "targets.tpot_ms=60000", "repeats=1"),
    *("capacity.seconds=1", "capacity.least_requests=24", "capacity.resolution=1"),
    *("capacity.share=0.5", "traffic.requests=24", "engine.max_num_seqs=2"),
    *("traffic.input.median=8", "traffic.input.high=16"),
    *("traffic.output.distribution=fixed", "traffic.output.median=64"),
)


def searched(run: Run, *command: str) -> str:
    """What a search says. Where the machine was too busy for it, the same command goes on."""
    said = ""
    for _ in range(10):
        result = run(*command)
        said += result.stderr
        if result.returncode != 3 or "trials were not valid" not in result.stderr:
            break
    assert result.returncode == 0, said
    return said


def trials(path: Path) -> list[TrialRow]:
    found, faults = read(path)
    assert faults == []
    return [row for row in found if isinstance(row, TrialRow) and not row.invalid]


@pytest.mark.usefixtures("programs_here", "tiny")
def test_the_highest_rate_is_searched_recorded_and_reported(
    stand_in: StandIn, command_here: Run, tmp_path: Path
) -> None:
    command = ["evaluate", "model=tiny", *SEARCH, "engine=vllm_server"]
    command += [f"engine.url={stand_in.url}", "gpu.price_per_hour=3.6"]
    said = searched(command_here, *command)
    rows = trials(tmp_path / "results.jsonl")
    assert {row.repeat for row in rows} == {0, 1}
    assert any(row.trial.meets for row in rows)
    missed = [row for row in rows if not row.trial.meets]
    assert missed
    assert all(row.values.good_share < 0.9 for row in missed)
    assert max(row.settings.rate for row in rows if row.trial.meets) < 3 * LIMIT
    for row in rows:  # under its own targets a trial is judged as the search did
        slow, failed = row.requests.slowest_s, row.values.failed_requests or 0
        assert slow
        allowed = allowed_misses(row.settings.requests or 0, 0.9)
        late = sum(ttft > 0.2 or tpot > 0.1 for ttft, tpot in slow)
        assert (failed + late <= allowed) == row.trial.meets
        assert bool(row.requests.times_s) == row.trial.meets
    assert "meets the targets" in said
    assert re.search(r"misses the targets \(at most [\d.]+% in time; \d+ \w", said)
    report = (tmp_path / "results-report" / "report.md").read_text()
    assert "How much traffic one GPU holds" in report
    assert "USD per million output tokens" in report
    salts = {body["cache_salt"] for body in stand_in.bodies}
    assert len(salts) >= len(rows)

    asked = len(stand_in.bodies)
    again = command_here(*command)
    assert again.returncode == 0, again.stderr
    assert len(stand_in.bodies) == asked  # nothing was missing

    lines = (tmp_path / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_text("".join(lines[:-1]))  # the last trial is a valid one
    searched(command_here, *command)
    resumed = trials(tmp_path / "results.jsonl")
    assert [row.settings.rate for row in resumed[: len(rows) - 1]] == [
        row.settings.rate for row in rows[:-1]
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_a_real_engine_is_searched_until_its_rate_is_found(
    command_here: Run, tmp_path: Path
) -> None:
    said = searched(command_here, "evaluate", "model=tiny", "checkpoints=[]", *REAL)
    rows = trials(tmp_path / "results.jsonl")
    ended = found([Trial(row.settings.rate, row.trial.meets) for row in rows], resolution=1)
    assert ended is not None
    assert ended.low > 0
    assert {row.environment.engine for row in rows} == {"vllm_server"}
    for row in rows:
        assert row.requests.output_tokens.keys() <= {"64"}  # others were cut off when it had missed
        assert (row.values.good_share >= 0.5) == row.trial.meets
        assert 0 < row.values.server_cpu_share <= 1
        assert 0 < row.values.client_cpu_share <= 1
    assert "meets the targets" in said
    report = (tmp_path / "results-report" / "report.md").read_text()
    section = report.partition("How much traffic one GPU holds")[2]
    assert re.search(r"^\| capacity +\| original +\| \d", section, flags=re.MULTILINE)
