"""Trials as rows of the results file, with workers that make their runs up."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conf.errors import QuantlineError, bad_input, environment_failure
from conf.schema.report import TargetsConfig
from evaluate.measure.environment import environment
from evaluate.measure.events import EngineLoaded, Event, RunMeasured, RunStarted
from evaluate.measure.metrics import Request, batch_values
from evaluate.measure.run_parts import compact_requests
from evaluate.measure.targets import Target
from evaluate.plan import Inspected
from evaluate.results.recorder import Recorder
from evaluate.results.results_file import read
from evaluate.results.row_types import Environment
from evaluate.results.row_values import SpeedValues
from evaluate.results.rows import FailedRow
from evaluate.run import Turn
from evaluate.tune.display import TuneDisplay
from evaluate.tune.engines import EngineTrials
from evaluate.tune.latency_targets import missed_targets
from evaluate.tune.space import DEFAULT, Assignment
from evaluate.tune.target import TunedCheckpoint
from evaluate.tune.trials import Budget, Trial, TrialRequest
from tests.conftest import evaluate_config
from tests.evaluate.made_rows import speed_row
from tests.evaluate.test_plan import CONFIG, WEIGHT
from tests.evaluate.tune.made_up import space

SLOWER = (("performance_mode", "throughput"),)
QUIET = (("async_scheduling", "false"),)
BROKEN = (("custom_ops", "all"),)
TIMES = {DEFAULT: 1.0, SLOWER: 1.5}


class MadeUpGroup:
    """A group of engines without processes."""

    started: ClassVar[list[dict[str, Any]]] = []
    limits: ClassVar[list[float | None]] = []
    limit_s: float | None = None

    def __init__(self, config: object, turns: list[Turn], results: Path) -> None:
        self.turns, self.workers = turns, dict[int, object]()

    def __enter__(self) -> "MadeUpGroup":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def load(self, place: int, loading: Callable[[str], None]) -> None:
        engine = self.turns[place].engine
        assert engine is not None
        self.started.append(engine.options)
        self.limits.append(self.limit_s)
        self.workers[place] = object()

    def wait_until_loaded(self) -> None:
        pass

    def measure(self, place: int) -> Iterator[Event]:
        turn = self.turns[place]
        assert turn.engine is not None
        if "compilation_config" in turn.engine.options:
            raise environment_failure("the engine stopped with 1: no such op")
        yield EngineLoaded(startup={"start_s": 30.0 + turn.start})
        mode = turn.engine.options.get("performance_mode")
        for repeat in turn.plan.repeats[turn.start]["interactive"]:
            yield RunStarted("interactive", repeat)
            yield _run(repeat, TIMES[SLOWER if mode else DEFAULT] * (1 + 0.001 * repeat))


def _run(repeat: int, seconds: float) -> RunMeasured:
    times = [seconds * (token + 1) / 64 for token in range(64)]
    requests = [Request(128, times)]
    values = batch_values(requests).numbers()
    return RunMeasured("interactive", repeat, values, compact_requests(requests), None, [])


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EngineTrials]:
    monkeypatch.setattr("evaluate.tune.engines.Group", MadeUpGroup)
    monkeypatch.setattr(MadeUpGroup, "started", [])
    monkeypatch.setattr(MadeUpGroup, "limits", [])

    def make(*overrides: str) -> EngineTrials:
        results = f"results={tmp_path / 'r.jsonl'}"
        config = evaluate_config("model=tiny", "repeats=4", results, *overrides)
        inspected = Inspected(Target("w8", Path("/m")), Path("/m"), CONFIG, "5ha", None, WEIGHT)
        tuned = TunedCheckpoint(config, Path("/m"), inspected)
        recorder = Recorder(config, environment(config.gpu, config.engine))
        display = TuneDisplay(Budget(60.0))
        return EngineTrials(tuned, "interactive", space(), config.accuracy, recorder, display, None)

    return make


def measured(engines: EngineTrials, *requests: TrialRequest, beaten: float = 9.0) -> list[Trial]:
    return list(engines.measure(requests, lambda start: start.mean > beaten))


def test_an_engine_hangs_by_the_time_that_others_took(
    trials: Callable[..., EngineTrials],
) -> None:
    engines = trials()
    measured(engines, TrialRequest(BROKEN))
    measured(engines, TrialRequest(DEFAULT))
    measured(engines, TrialRequest(SLOWER))
    engines.longest_s = 300.0
    measured(engines, TrialRequest(QUIET))
    measured(engines, TrialRequest(DEFAULT, 1))
    assert MadeUpGroup.limits == [3600.0, 3600.0, 600.0, 1500.0, 1500.0]


def test_each_run_is_a_row_with_its_settings(
    trials: Callable[..., EngineTrials], tmp_path: Path
) -> None:
    first, second = measured(trials(), TrialRequest(DEFAULT), TrialRequest(SLOWER))
    assert (first.runs, second.runs) == (4, 4)
    assert first.time_s == pytest.approx(1.0015, rel=1e-4)
    assert second.time_s == pytest.approx(1.5 * 1.0015, rel=1e-4)
    rows, faults = read(tmp_path / "r.jsonl")
    assert faults == []
    assert [(row.kind, row.start, row.repeat) for row in rows] == [
        ("speed", 0, repeat) for repeat in (0, 1, 2, 3) * 2
    ]
    modes = [row.environment.engine_options.get("performance_mode") for row in rows]
    assert modes == [None] * 4 + ["throughput"] * 4
    assert len({row.key for row in rows}) == 2


def test_engines_that_are_loaded_together_have_logs_of_their_own(
    trials: Callable[..., EngineTrials],
) -> None:
    engines = trials("side_by_side=2")
    turns = [engines.plan(TrialRequest(one)).turn for one in (DEFAULT, SLOWER)]
    assert turns[0].log_suffix != turns[1].log_suffix
    assert turns[0].plan.options["kv_cache_memory_bytes"] > 0
    assert len(measured(engines, TrialRequest(DEFAULT), TrialRequest(SLOWER))) == 2


def test_a_beaten_trial_ends_after_the_run_that_shows_it(
    trials: Callable[..., EngineTrials],
) -> None:
    (slower,) = measured(trials(), TrialRequest(SLOWER), beaten=0.1)
    assert (slower.is_beaten, slower.runs, slower.failure) == (True, 2, "")
    assert slower.saved_s == pytest.approx(2 * 1.5, rel=0.01), "two runs more would take as long"


def test_a_trial_that_is_slower_at_its_last_run_is_whole(
    trials: Callable[..., EngineTrials],
) -> None:
    (slower,) = engines_beaten_at(trials(), 4)
    assert (slower.is_beaten, slower.runs) == (False, 4)
    (slower,) = engines_beaten_at(trials("force=true"), 3)
    assert (slower.is_beaten, slower.runs) == (True, 3)


def engines_beaten_at(engines: EngineTrials, runs: int) -> list[Trial]:
    return list(engines.measure([TrialRequest(SLOWER)], lambda start: len(start.logs) >= runs))


def test_a_trial_knows_the_targets_that_it_misses(trials: Callable[..., EngineTrials]) -> None:
    """Its scenario stands for traffic: 64 tokens in a second."""
    engines = trials("targets.tpot_ms=10", "targets.ttft_ms=20")
    (trial,) = measured(engines, TrialRequest(DEFAULT))
    assert trial.misses.startswith("TTFT was not measured, p99 TPOT 15.6")
    again = trials("targets.tpot_ms=10", "targets.ttft_ms=20").recorded()
    assert [one.misses for one in again] == [trial.misses]
    assert trials().recorded()[0].misses == ""


def test_p99_of_the_median_run_is_compared_with_the_targets() -> None:
    runs = [
        speed_row(values=SpeedValues(ttft_p99_s=ttft, tpot_p99_s=0.03, latency_s=9.0))
        for ttft in (0.4, 0.5, 0.6, 9.0)
    ]
    assert missed_targets(runs, TargetsConfig(ttft_ms=551, tpot_ms=30)) == ""
    assert missed_targets(runs, TargetsConfig(ttft_ms=549)) == "p99 TTFT 550 ms is over 549 ms"
    both = missed_targets(runs, TargetsConfig(ttft_ms=500, tpot_ms=20))
    assert both == "p99 TTFT 550 ms is over 500 ms, p99 TPOT 30 ms is over 20 ms"
    assert missed_targets(runs, TargetsConfig()) == ""


def test_an_engine_that_does_not_start_is_a_failed_row_and_the_next_one_runs(
    trials: Callable[..., EngineTrials], tmp_path: Path
) -> None:
    broken, default = measured(trials(), TrialRequest(BROKEN), TrialRequest(DEFAULT))
    assert broken.failure == "the engine stopped with 1: no such op"
    assert (default.failure, default.runs) == ("", 4)
    failed = [row for row in read(tmp_path / "r.jsonl")[0] if isinstance(row, FailedRow)]
    assert [row.reason for row in failed] == [broken.failure]
    assert [row.values.exit_code for row in failed] == [3]
    assert failed[0].environment.engine_options["compilation_config"] == {"custom_ops": ["all"]}


def test_settings_with_which_the_engine_dies_after_some_runs_have_failed(
    trials: Callable[..., EngineTrials], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two valid runs are a trial, but an engine that dies is not served."""
    usual = MadeUpGroup.measure

    def dying(group: MadeUpGroup, place: int) -> Iterator[Event]:
        yield from itertools.islice(usual(group, place), 1 + 2 * 3)  # loaded, and three runs
        raise environment_failure("the engine died: CUDA error")

    def dead(group: MadeUpGroup, place: int) -> Iterator[Event]:
        yield EngineLoaded()
        raise environment_failure("the engine died: CUDA error")

    with monkeypatch.context() as patched:
        for is_final, measure in ((False, dying), (True, dead)):
            patched.setattr(MadeUpGroup, "measure", measure)
            (trial,) = measured(trials(), TrialRequest(SLOWER))
            assert (trial.runs, trial.failure) == (3, "the engine died: CUDA error")
            (later,) = trials().recorded()
            assert (later.failure, later.is_final) == (trial.failure, is_final)
    (mended,) = measured(trials(), TrialRequest(SLOWER))
    assert (mended.runs, mended.failure) == (4, "")
    (whole,) = trials().recorded()
    assert (whole.runs, whole.failure) == (4, "")


def test_a_recorded_trial_says_how_long_its_start_took(
    trials: Callable[..., EngineTrials],
) -> None:
    """With all runs, also where it was stopped early."""
    measured(trials(), TrialRequest(SLOWER), beaten=0.1)
    (found,) = trials().recorded()
    assert found.runs == 2
    assert found.took_s == pytest.approx(30 + 4 * 1.5, rel=0.01)


def test_a_later_command_finds_the_trials_of_an_earlier_one(
    trials: Callable[..., EngineTrials],
) -> None:
    requests = [TrialRequest(one) for one in (DEFAULT, BROKEN, SLOWER)]
    before = measured(trials(), *requests)
    measured(trials(), TrialRequest(DEFAULT, 1))
    found = trials().recorded()
    assert [(one.assignment, one.runs, one.failure) for one in found] == [
        (one.assignment, one.runs, one.failure) for one in before
    ]
    assert found[2].time_s == pytest.approx(before[2].time_s)
    assert len(MadeUpGroup.started) == 4
    again = measured(trials(), TrialRequest(DEFAULT), TrialRequest(DEFAULT, 1))
    assert [trial.runs for trial in again] == [4, 4]
    assert len(MadeUpGroup.started) == 4, "no engine was started for what the results hold"
    assert trials("force=true").recorded() == []
    assert trials("engine.seed=1").recorded() == [], "other options are other trials"
    assert trials("scenario.interactive.output_tokens=8").recorded() == []


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (environment_failure("the engine ran out of memory"), [False, True]),
        (bad_input("kv_cache_dtype=fp8: has no scales"), [True, True]),
        (environment_failure("stopped with 1: 1 validation error for VllmConfig: no"), [True] * 2),
    ],
)
def test_settings_count_as_failing_once_refused_or_at_the_second_failure(
    trials: Callable[..., EngineTrials],
    monkeypatch: pytest.MonkeyPatch,
    error: QuantlineError,
    is_final: list[bool],
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(MadeUpGroup, "load", broken)
    for expected in is_final:
        engines = trials()
        (now,) = measured(engines, TrialRequest(SLOWER))
        measured(engines, TrialRequest(SLOWER, 1))
        (later,) = trials().recorded()
        assert later.is_final == expected
        assert now.failure == later.failure == str(error)


def test_missing_runs_of_an_interrupted_trial_are_added(
    trials: Callable[..., EngineTrials],
) -> None:
    measured(trials(), TrialRequest(DEFAULT), beaten=-9.0)  # ends after two runs
    (half,) = trials().recorded()
    assert half.runs == 2
    (whole,) = measured(trials(), TrialRequest(DEFAULT))
    assert whole.runs == 4
    assert [trial.runs for trial in trials().recorded()] == [4]


def confirm(engines: EngineTrials, best: Assignment = SLOWER) -> Sequence[int]:
    """Measures the starts that confirm, in turns; returns their numbers."""
    numbers = engines.confirming_starts(best, 2)
    measured(engines, *(TrialRequest(one, n) for n in numbers for one in (DEFAULT, best)))
    return list(numbers)


def test_starts_that_confirm_are_those_of_one_command(trials: Callable[..., EngineTrials]) -> None:
    assert confirm(trials()) == [1, 2]
    assert len(MadeUpGroup.started) == 4
    assert confirm(trials()) == [1, 2]
    assert len(MadeUpGroup.started) == 4, "all four were measured by one command"
    assert confirm(trials(), QUIET) == [3, 4], "the default is confirmed again beside another best"
    assert len(MadeUpGroup.started) == 8
    assert confirm(trials()) == [1, 2]
    assert confirm(trials(), QUIET) == [3, 4]
    assert len(MadeUpGroup.started) == 8
    assert confirm(trials("force=true")) == [1, 2]


def test_a_confirmation_that_was_interrupted_begins_again(
    trials: Callable[..., EngineTrials],
) -> None:
    measured(
        trials(), *(TrialRequest(one, 1) for one in (DEFAULT, SLOWER)), TrialRequest(DEFAULT, 2)
    )
    assert confirm(trials()) == [3, 4]


def test_trials_of_another_card_are_measured_again(
    trials: Callable[..., EngineTrials], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cards of one name may differ by more than settings gain."""

    def on_card(name: str) -> None:
        def here(*arguments: Any) -> Environment:
            return environment(*arguments).with_fields(card=name)

        monkeypatch.setattr("evaluate.tune.engines.environment", here)

    on_card("GPU-a")
    measured(trials(), TrialRequest(DEFAULT), TrialRequest(BROKEN))
    assert confirm(trials()) == [1, 2]
    on_card("GPU-b")
    assert trials().recorded() == []
    (here,) = measured(trials(), TrialRequest(DEFAULT))
    assert here.runs == 4
    assert len(MadeUpGroup.started) == 7, "the default ran on each of the two"
    confirm(trials())
    assert len(MadeUpGroup.started) == 11
    on_card("GPU-a")
    assert [trial.assignment for trial in trials().recorded()] == [DEFAULT, BROKEN]


def test_invalid_runs_are_no_trial(
    trials: Callable[..., EngineTrials], monkeypatch: pytest.MonkeyPatch
) -> None:
    def throttled(repeat: int, seconds: float) -> RunMeasured:
        return replace(usual(repeat, seconds), invalid=["the GPU was throttled"])

    usual = _run
    monkeypatch.setattr("tests.evaluate.tune.test_engines._run", throttled)
    (trial,) = measured(trials(), TrialRequest(DEFAULT))
    assert (trial.runs, trial.failure) == (0, "the GPU was throttled")
    assert trials().recorded() == [], "they are measured again"
