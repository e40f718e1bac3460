"""What a launcher costs: the number of jobs at once, which the cost of a job is computed from."""

import re

import pytest

from evaluate.sweep.benchmark import SweepBenchmarkConfig, shortest_sweep
from tests.command_here import Run

FAST = ("launcher=local", "jobs=2", "seconds=0.1", "launcher.poll_s=0.1")


def test_as_many_jobs_run_at_once_as_there_are_workers(command_here: Run) -> None:
    ran = command_here("evaluate.sweep.benchmark", *FAST, "launcher.workers=2")
    assert "local: 2 jobs of 0.1 s, 2 at once: " in ran.stdout
    overhead = re.search(r"([-\d.]+) s of overhead for each job", ran.stdout)
    assert overhead
    assert float(overhead[1]) > 0


def test_another_number_than_the_workers_is_refused(command_here: Run) -> None:
    ran = command_here("evaluate.sweep.benchmark", *FAST, "launcher.workers=2", "at_once=1")
    assert ran.returncode == 2
    assert "at_once=1: launcher.workers=2 jobs run at once" in ran.stderr


@pytest.mark.parametrize("jobs", [1, 2, 5, 16])
def test_lengths_differ_around_their_mean(jobs: int) -> None:
    sleeps = SweepBenchmarkConfig(jobs=jobs, seconds=3, spread=1).sleeps
    assert len(sleeps) == jobs
    assert sum(sleeps) / jobs == pytest.approx(3)
    assert max(sleeps) - min(sleeps) == pytest.approx(1 if jobs > 1 else 0)
    halves = sum(sleeps[::2]), sum(sleeps[1::2])
    if jobs % 2 == 0:
        assert halves[0] < halves[1] <= halves[0] + jobs / 2, "short and long ones in turns"


@pytest.mark.parametrize("at_once", [1, 2, 3, 8])
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_the_shortest_sweep_has_no_overhead(at_once: int, spread: float) -> None:
    sleeps = SweepBenchmarkConfig(jobs=8, seconds=3, spread=spread).sleeps
    shortest = shortest_sweep(sleeps, at_once)
    assert sum(sleeps) / at_once <= shortest + 1e-9
    assert shortest <= sum(sleeps) / at_once + max(sleeps)
    if not spread:
        assert shortest == pytest.approx(3 * -(-8 // at_once))


def test_a_spread_beyond_the_length_is_named(command_here: Run) -> None:
    ran = command_here("evaluate.sweep.benchmark", *FAST, "spread=100")
    assert ran.returncode == 2
    assert "spread=100.0: is more than twice" in ran.stderr
