"""launcher=local: workers, their GPUs, failures, resuming, and an interrupted sweep."""

import signal
from pathlib import Path

import psutil
import pytest

from conf.errors import QuantlineError
from conf.launch.options import LauncherConfig
from conf.launch.runners import Resources
from conf.launch.runners.local import LocalRunner, gpu_sets
from tests.conf.launch.standin import FAILS
from tests.conf.launch.sweeps import SweepRun, ended, runs_of, said_until, wait_until
from tests.processes import wait_until_gone

TWO_WORKERS = ("launcher=local", "launcher.workers=2", "repeats=2")


@pytest.fixture
def sweep(tmp_path: Path) -> SweepRun:
    return SweepRun(tmp_path)


@pytest.mark.parametrize(
    ("gpus", "per_job", "workers", "sets"),
    [
        (["0", "1", "2", "3"], 1, None, ["0", "1", "2", "3"]),
        (["0", "1", "2", "3"], 1, 2, ["0", "1"]),
        (["4", "GPU-b", "6"], 2, None, ["4,GPU-b"]),
        ([], 0, None, [""]),
        (["0", "1"], 0, 3, ["", "", ""]),
    ],
)
def test_no_gpu_has_two_workers(
    gpus: list[str], per_job: int, workers: int | None, sets: list[str]
) -> None:
    assert gpu_sets(gpus, per_job, workers) == sets


@pytest.mark.parametrize(
    ("gpus_per_job", "needed", "message"),
    [
        (3, 1, "launcher.gpus_per_job=3: this machine has 2"),
        (1, 2, "launcher.gpus_per_job=1: the engine of a job needs 2"),
        (None, 4, "a job needs GPUs: 4: this machine has 2"),
    ],
)
def test_gpus_that_are_not_there_are_refused(
    monkeypatch: pytest.MonkeyPatch, gpus_per_job: int | None, needed: int, message: str
) -> None:
    monkeypatch.setattr("conf.launch.runners.local.gpu_handles", lambda: ["a", "b"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(QuantlineError, match=message):
        LocalRunner(LauncherConfig("local", gpus_per_job=gpus_per_job), Resources(needed))


def test_a_sweep_goes_on_after_a_failure_and_a_second_call_does_what_is_missing(
    sweep: SweepRun,
) -> None:
    sweep.open_gates(0, 1)
    recipes = "recipes=[fp8_dynamic,w8a8_smooth_gptq,fp8_block]"
    code, said = sweep.run(*TWO_WORKERS, recipes, **{FAILS: "fp8_block"})
    assert code == 4, said
    assert "0 queued, 0 running, 2 done, 1 failed" in said
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "fp8_block is broken (log: " in line
    assert Path(line.split("(log: ")[1].rstrip(")")).is_file()
    done = [(name, repeat) for name in ("fp8_dynamic", "w8a8_smooth_gptq") for repeat in (0, 1)]
    assert runs_of(sweep.rows()) == done
    variables = [row["environment"]["variables"] for row in sweep.rows()]
    # Their speeds are no others': the two jobs share this CPU.
    assert all("QUANTLINE_JOB_CPUS" in values for values in variables)
    assert all("CUDA_VISIBLE_DEVICES" not in values for values in variables)
    code, said = sweep.run(*TWO_WORKERS, recipes)
    assert code == 0, said
    assert "3 jobs, of which 2 are done already" in said
    assert "launcher=local: 1 jobs" in said
    assert runs_of(sweep.rows()) == sorted([*done, ("fp8_block", 0), ("fp8_block", 1)])
    assert sweep.record("fp8_dynamic")["overrides"][-1] == "recipes=[fp8_dynamic]"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_jobs_and_keeps_what_they_measured(
    sweep: SweepRun, number: signal.Signals
) -> None:
    sweep.open_gates(0)  # each job measures one run, then waits
    process = sweep.start(*TWO_WORKERS, "recipes=[fp8_dynamic,w8a8_smooth_gptq]")
    both = ("fp8_dynamic", "w8a8_smooth_gptq")
    wait_until(lambda: all(sweep.shard_rows(name) for name in both), process)
    versions = [sweep.shard_rows(name)[0]["environment"]["versions"] for name in both]
    jobs = [psutil.Process(int(version["process"])) for version in versions]
    process.send_signal(number)
    code, said = ended(process)
    assert code == 128 + number
    assert "cancelling the jobs\n" in said
    ending = "interrupted" if number == signal.SIGINT else "ended by SIGHUP"
    kept = "0 of 2 jobs are done; results.jsonl has what was measured"
    assert said.endswith(f"\n{ending}; {kept}; the same command continues\n")
    wait_until_gone(jobs)
    assert runs_of(sweep.rows()) == [(name, 0) for name in both]
    # What a crash leaves at the end of a shard is no row, and is measured again.
    shard = next(sweep.sweep_folder.glob("tiny-fp8_dynamic-*.jsonl"))
    shard.write_bytes(shard.read_bytes() + b'{"kind":"speed","mod')
    sweep.open_gates(1)
    code, said = sweep.run(*TWO_WORKERS, "recipes=[fp8_dynamic,w8a8_smooth_gptq]")
    assert code == 0, said
    assert "is not finished; the line is ignored" in said
    assert runs_of(sweep.rows()) == [(name, repeat) for name in both for repeat in (0, 1)]
    assert sweep.record("fp8_dynamic")["attempt"] == 2


def test_ctrl_c_counts_what_is_done_and_a_second_one_does_not_cut_it_short(sweep: SweepRun) -> None:
    sweep.open_gates(0)
    options = ("launcher=local", "repeats=1,2", "recipes=[fp8_dynamic]")
    process = sweep.start(*options)  # the first job ends, the second waits
    said_until(process, "1 running, 1 done")
    process.send_signal(signal.SIGINT)
    said_until(process, "cancelling the jobs")
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 130
    assert "interrupted; 1 of 2 jobs are done; results.jsonl has what was measured; " in said


def test_a_sweep_that_measures_again_does_not_say_that_it_continues(sweep: SweepRun) -> None:
    sweep.open_gates()
    process = sweep.start("launcher=local", "force=true", "recipes=[fp8_dynamic]")
    said_until(process, "1 running")
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 130
    assert said.endswith("interrupted; with force=true the same command begins anew\n")
