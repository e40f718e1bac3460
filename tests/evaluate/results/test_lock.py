"""Two evaluations of one file, signals, and a report that cannot be written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conf.errors import QuantlineError
from evaluate import command
from evaluate.results.lock import only_writer
from evaluate.results.results_file import append, read
from tests.conftest import Run, evaluate_config
from tests.evaluate.results.rows_of_each_kind import failed_row, quick_row
from tests.processes import wait_until_gone

SECONDS = 300  # of a machine that does much else
# A worker with a process of its own, as engines have; both say who they are and wait.
WORKER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
# `python -m evaluate` that listens to that worker in place of an engine's.
EVALUATE = """
import sys
from pathlib import Path
from conf.app import run
from conf.process.program import Program
from conf.process.running import stream
from evaluate import command
from evaluate.measure.events import RunStarted
waiting = Program('waiting_worker', RunStarted, ())
command._measure = lambda config: list(stream(waiting, RunStarted('', 0), Path('log')))
run(command.COMMAND, command.main)
"""


@pytest.mark.parametrize("name", ["results.jsonl", "link.jsonl", "deep/../results.jsonl"])
def test_a_second_evaluation_of_a_file_says_so_and_ends(
    name: str, run_command: Run, tmp_path: Path
) -> None:
    path = tmp_path / "results.jsonl"
    append(path, failed_row())
    (tmp_path / "deep").mkdir()
    (tmp_path / "link.jsonl").symlink_to(path)
    before = path.read_bytes()
    with only_writer(path):
        result = run_command("evaluate", "model=tiny", f"results={name}")
    assert result.returncode == 3
    assert f"results={name}: another evaluation (process {os.getpid()})" in result.stderr
    assert "Traceback" not in result.stderr
    assert path.read_bytes() == before


def test_who_only_reads_is_not_stopped(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with only_writer(path):
        append(path, failed_row())
        assert len(read(path)[0]) == 1


def test_other_files_and_later_runs_are_free(tmp_path: Path) -> None:
    with only_writer(tmp_path / "new" / "a.jsonl"), only_writer(tmp_path / "new" / "b.jsonl"):
        pass
    assert list(tmp_path.iterdir()) == []
    with only_writer(tmp_path / "a.jsonl"):
        pass


def test_a_lock_that_a_killed_run_left_behind_stops_nothing(tmp_path: Path) -> None:
    script = (
        "import time\nfrom pathlib import Path\nfrom evaluate.results.lock import only_writer\n"
        "with only_writer(Path('a.jsonl')):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(QuantlineError, match=f"process {holder.pid}"),
        only_writer(tmp_path / "a.jsonl"),
    ):
        pass
    holder.kill()
    holder.wait()
    assert (tmp_path / "a.jsonl.lock").exists()
    with only_writer(tmp_path / "a.jsonl"):
        pass


def test_a_folder_is_no_file_of_results(tmp_path: Path) -> None:
    with pytest.raises(QuantlineError, match="is a folder") as caught, only_writer(tmp_path):
        pass
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_evaluation_and_all_that_it_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "waiting_worker.py").write_text(WORKER)
    append(tmp_path / "results.jsonl", failed_row())
    before = (tmp_path / "results.jsonl").read_bytes()
    places = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    running = subprocess.Popen(
        [sys.executable, "-c", EVALUATE, "model=tiny"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "log"
    limit = time.monotonic() + SECONDS
    while not (log.is_file() and log.read_text().endswith("\n")):
        assert running.poll() is None, running.stderr and running.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.1)
    started = [psutil.Process(int(pid)) for pid in log.read_text().split()]
    running.send_signal(number)
    _, words = running.communicate(timeout=SECONDS)
    wait_until_gone(started)
    assert running.returncode == 128 + number
    expected = {
        signal.SIGTERM: "ended by SIGTERM; results.jsonl has what was measured",
        signal.SIGHUP: "ended by SIGHUP; results.jsonl has what was measured",
        signal.SIGINT: "interrupted; results.jsonl has what was measured",
    }
    assert f"{expected[number]}; the same command continues" in words
    assert "Traceback" not in words
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert not (tmp_path / "results.jsonl.lock").exists()


def test_an_interruption_before_the_first_run_names_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "results.jsonl")
    with pytest.raises(SystemExit), command.kept_when_ended(path):
        os.kill(os.getpid(), signal.SIGTERM)
    assert capsys.readouterr().err == "ended by SIGTERM; the same command continues\n"
    with pytest.raises(KeyboardInterrupt) as caught, command.kept_when_ended(path):
        raise KeyboardInterrupt
    assert str(caught.value) == "interrupted; the same command continues"


def test_a_report_that_cannot_be_written_is_a_failure_that_keeps_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    (tmp_path / "results-report").write_text("in the way")
    monkeypatch.setattr(command, "_measure", lambda _: append(path, quick_row()))
    config = evaluate_config("model=tiny", f"results={path}", "targets.tpot_ms=20")
    with pytest.raises(QuantlineError, match=r"no report: .*is no folder") as caught:
        command.main(config)
    assert caught.value.exit_code == 2
    words = str(caught.value)
    assert f"All runs are kept in {path}" in words
    assert f"python -m evaluate.report 'results=[{path}]'" in words
    assert "targets.tpot_ms=20 writes it" in words
    assert len(read(path)[0]) == 1


def test_what_failed_in_measuring_comes_before_what_failed_in_reporting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    (tmp_path / "results-report").write_text("in the way")

    def measure(_: object) -> None:
        append(path, quick_row())
        raise QuantlineError("the engine was ended by SIGKILL", 3)

    monkeypatch.setattr(command, "_measure", measure)
    with pytest.raises(QuantlineError, match="the engine was ended by SIGKILL"):
        command.main(evaluate_config("model=tiny", f"results={path}"))
    assert "no report: " in capsys.readouterr().err
