"""launcher=slurm on a real Slurm cluster of one node: GPUs, requeued jobs, failures, cancelling."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf import ROOT
from conf.errors import QuantlineError
from conf.launch.options import LauncherConfig
from conf.launch.records import write_record
from conf.launch.runners import Resources
from conf.launch.runners.slurm_commands import minutes_of
from conf.launch.task import JobEnded, Record, RecordState, Task
from conf.process.messages import READERS, Failure, decode, encode
from tests.conf.launch.slurm_cluster import reason_for_none, slurm_cluster
from tests.conf.launch.standin import FAILS
from tests.conf.launch.sweeps import SweepRun, ended, runs_of, said_until, wait_until

pytestmark = pytest.mark.cluster
SLURM = ("launcher=slurm", "repeats=2")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    pytest.importorskip("submitit", reason="submitit is not installed (make setup-cluster)")
    if reason := reason_for_none():
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


@pytest.fixture
def sweep(tmp_path: Path, cluster: dict[str, str]) -> SweepRun:
    return SweepRun(tmp_path, cluster)


def slurm_job(sweep: SweepRun, recipe: str) -> str:
    """The number of a recipe's Slurm job."""
    return next(sweep.sweep_folder.glob(f"tiny-{recipe}-*.slurm")).read_text().strip()


def slurm(cluster: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=cluster, capture_output=True, text=True, check=True).stdout


def test_preempted_jobs_go_on_and_each_sees_its_own_gpu(
    sweep: SweepRun, cluster: dict[str, str]
) -> None:
    both, third = ("fp8_dynamic", "w8a8_smooth_gptq"), "fp8_block"
    recipes = f"recipes=[{','.join([*both, third])}]"
    sweep.open_gates(0)  # a job measures one run, then waits
    process = sweep.start(*SLURM, recipes)
    wait_until(lambda: all(sweep.shard_rows(name) for name in both), process)
    first = {name: sweep.shard_rows(name)[0]["environment"]["versions"] for name in both}
    assert {versions["gpus"] for versions in first.values()} == {"0", "1"}
    assert sweep.shard_rows(third) == []  # the cluster has two GPUs
    slurm(cluster, "scontrol", "requeue", slurm_job(sweep, both[0]))
    # As before a time limit: sbatch's `--signal=B:USR2@60` is for the batch script, too.
    slurm(cluster, "scancel", "--batch", "--signal=USR2", slurm_job(sweep, both[1]))
    process.kill()  # the jobs go on, and the same command finds them
    process.communicate()
    process = sweep.start(*SLURM, recipes)
    said = said_until(process, "launcher=slurm: 3 jobs") + said_until(process, "jobs: ")
    wait_until(lambda: bool(sweep.shard_rows(third)), process)  # their GPUs are free
    sweep.open_gates(1)
    code, more = ended(process)
    said += more
    assert code == 0, said
    assert said.count("is in the queue already, as job") == 3
    assert "0 queued, 0 running, 3 done, 0 failed" in said
    assert runs_of(sweep.rows()) == sorted((n, r) for n in (*both, third) for r in (0, 1))
    for name in both:
        assert sweep.record(name)["attempt"] == 2
        one, other = [row["environment"]["versions"]["process"] for row in sweep.shard_rows(name)]
        assert one == first[name]["process"] != other
    before = (sweep.folder / "results.jsonl").read_bytes()
    code, said = sweep.run(*SLURM, recipes)
    assert (code, "3 jobs, of which 3 are done already" in said) == (0, True), said
    assert (sweep.folder / "results.jsonl").read_bytes() == before


def test_failed_and_killed_jobs_are_listed_and_ctrl_c_cancels_the_rest(
    sweep: SweepRun, cluster: dict[str, str]
) -> None:
    sweep.open_gates(0)
    recipes = "recipes=[fp8_dynamic,w8a8_smooth_gptq]"
    process = sweep.start(*SLURM, recipes, **{FAILS: "w8a8_smooth_gptq"})
    wait_until(lambda: bool(sweep.shard_rows("fp8_dynamic")), process)
    slurm(cluster, "scancel", slurm_job(sweep, "fp8_dynamic"))
    code, said = ended(process)
    assert code == 4
    failures = sorted(line for line in said.splitlines() if line.startswith("error: "))
    assert len(failures) == 2
    assert "it was ended from outside (Slurm's job" in failures[0]
    assert "CANCELLED" in failures[0]
    assert "w8a8_smooth_gptq is broken (log: " in failures[1]
    assert runs_of(sweep.rows()) == [("fp8_dynamic", 0)]
    process = sweep.start(*SLURM, recipes)
    wait_until(lambda: bool(sweep.shard_rows("w8a8_smooth_gptq")), process)
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 130
    assert "jobs are done; results.jsonl has what was measured; the same command continues" in said
    assert slurm(cluster, "squeue", "--noheader", "--states=PENDING,RUNNING") == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "mian"}, "launcher.partition=mian: there is no 'mian'. Did you mean main?"),
        ({"gpus_per_job": 3}, "launcher.gpus_per_job=3: the largest node of partition main has 2"),
        ({"cpus_per_job": 3}, "launcher.cpus_per_job=3: the largest node of partition main has 2"),
        ({"memory_gib": 64}, "launcher.memory_gib=64: the largest node of partition main has 3.9"),
        ({"minutes": 61}, "launcher.minutes=61: the partition's limit is 60"),
        ({"gpu_type": "h200"}, "launcher.gpu_type=h200: there is no 'h200'"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_before_anything_is_submitted(
    options: dict[str, object],
    message: str,
    cluster: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from conf.launch.runners.slurm import SlurmRunner

    monkeypatch.setenv("SLURM_CONF", cluster["SLURM_CONF"])
    with pytest.raises(QuantlineError) as refused:
        SlurmRunner(LauncherConfig("slurm", **options), Resources(1))  # type: ignore[arg-type]
    assert message in str(refused.value)


def test_a_job_that_recorded_its_end_has_ended_at_the_first_look(
    tmp_path: Path, cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from conf.launch.runners.slurm import SlurmRunner

    monkeypatch.setenv("SLURM_CONF", cluster["SLURM_CONF"])
    runner = SlurmRunner(LauncherConfig("slurm"), Resources(1))
    monkeypatch.setattr(runner, "_submit_array", lambda folder, tasks: None)
    states: tuple[RecordState, ...] = ("running", "done", "failed")
    tasks = {state: Task(state, "", [], str(tmp_path), str(tmp_path)) for state in states}
    earlier = Task("earlier", "", [], str(tmp_path), str(tmp_path))
    write_record(earlier.record_file, Record("done", [], "", 1))  # of an earlier call
    runner.submit([*tasks.values(), earlier])
    runner.identifiers = dict.fromkeys([*states, "earlier"], "999999")  # a job that Slurm forgot
    for state, task in tasks.items():
        write_record(task.record_file, Record(state, [], "", 1))
    first, second = runner.states(), runner.states()
    assert {name for name, state in first.items() if state.kind == "ended"} == {"done", "failed"}
    assert {state.kind for state in second.values()} == {"ended"}


def test_the_process_that_starts_a_job_imports_little() -> None:
    code = (
        "import sys, conf.launch.slurm_task; print({'pydantic', 'numpy', 'hydra'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


def test_submitit_is_started_without_numpy(tmp_path: Path) -> None:
    (tmp_path / "started.py").write_text(
        "import importlib, sys\n"
        "try:\n    importlib.import_module('numpy')\n"
        "except ImportError:\n    print('no numpy', sys.argv)\n"
    )
    command = [sys.executable, "-m", "conf.launch.slurm_node", "-u", "-m", "started", "folder"]
    variables = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    assert found.stdout.startswith("no numpy [")
    assert found.stdout.endswith("'folder']\n")


@pytest.mark.parametrize("message", [JobEnded(None, []), JobEnded(1.5, ["a"]), Failure("why", 3)])
def test_how_a_job_ended_is_read_without_pydantic(message: JobEnded | Failure) -> None:
    assert decode(encode(message), [JobEnded, Failure]) == message
    assert not {JobEnded, Failure} & READERS.keys()


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [("30:00", 30), ("1:00:00", 60), ("2-12:00:00", 3600), ("infinite", float("inf"))],
)
def test_time_limits_are_read(limit: str, minutes: float) -> None:
    assert minutes_of(limit) == minutes
