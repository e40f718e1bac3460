"""launcher=ray on a real Ray cluster of this machine, with two workers and two made-up GPUs."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from serve.engine.process import free_port
from tests.conf.launch.standin import FAILS
from tests.conf.launch.sweeps import SECONDS_TO_WAIT, SweepRun, ended, runs_of, wait_until
from tests.processes import wait_until_gone

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that reach the cluster. Its token is its own, and is not in the home folder."""
    pytest.importorskip("ray", reason="ray is not installed (make setup-cluster)")
    folder = tmp_path_factory.mktemp("ray")
    (folder / "token").write_text(secrets.token_hex(32))
    port = free_port()
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_ADDRESS": f"127.0.0.1:{port}",
    }
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += [f"--port={port}", "--num-cpus=2", "--num-gpus=2", "--include-dashboard=false"]
    log = folder / "head.log"
    with log.open("wb") as output:
        head = subprocess.Popen(
            [*command, "--disable-usage-stats"],
            env=os.environ | variables,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + SECONDS_TO_WAIT
        while "Ray runtime started" not in log.read_text():
            assert head.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield variables
    finally:
        head.terminate()
        head.wait()


def test_jobs_share_the_cluster_and_a_lost_worker_is_replaced(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    sweep = SweepRun(tmp_path, cluster)
    both = ("fp8_dynamic", "w8a8_smooth_gptq")
    ray = ("launcher=ray", f"launcher.address={cluster['RAY_ADDRESS']}", "repeats=2")
    recipes = f"recipes=[{','.join([*both, 'fp8_block'])}]"
    sweep.open_gates(0)
    process = sweep.start(*ray, recipes, **{FAILS: "fp8_block"})
    wait_until(lambda: all(sweep.shard_rows(name) for name in both), process)
    first = {name: sweep.shard_rows(name)[0]["environment"]["versions"] for name in both}
    assert {versions["gpus"] for versions in first.values()} == {"0", "1"}
    job = psutil.Process(int(first[both[0]]["process"]))
    os.kill(job.ppid(), signal.SIGKILL)  # Ray's worker, which started the job
    wait_until(lambda: sweep.record(both[0])["attempt"] == 2, process)
    wait_until_gone([job])  # it ends with the worker
    sweep.open_gates(1)
    code, said = ended(process)
    assert code == 4
    assert "0 queued, 0 running, 2 done, 1 failed" in said
    assert "fp8_block is broken (log: " in said
    assert runs_of(sweep.rows()) == [(name, repeat) for name in both for repeat in (0, 1)]
    process = sweep.start(*ray, "launcher.gpus_per_job=3", recipes)
    code, said = ended(process)
    assert code == 2
    assert "launcher.gpus_per_job=3: the largest node of the Ray cluster has 2" in said


def test_ctrl_c_ends_the_jobs_and_says_what_is_kept(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    sweep = SweepRun(tmp_path, cluster)
    sweep.open_gates(0)
    options = ("launcher=ray", f"launcher.address={cluster['RAY_ADDRESS']}", "repeats=2")
    process = sweep.start(*options, "recipes=[fp8_dynamic]")
    wait_until(lambda: bool(sweep.shard_rows("fp8_dynamic")), process)
    (row,) = sweep.shard_rows("fp8_dynamic")
    job = psutil.Process(int(row["environment"]["versions"]["process"]))
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 130
    kept = "0 of 1 jobs are done; results.jsonl has what was measured"
    assert f"interrupted; {kept}; the same command continues" in said
    wait_until_gone([job])
    assert runs_of(sweep.rows()) == [("fp8_dynamic", 0)]
