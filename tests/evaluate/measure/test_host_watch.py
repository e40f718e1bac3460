"""What is read of the host's processors, from made counters and from this machine."""

import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluate.measure import host_watch
from evaluate.measure.gpu_watch import Watched
from evaluate.measure.host_watch import HostWatched, others_share, stolen_share, watching_host
from evaluate.measure.run_parts import add_watched
from evaluate.results.row_values import SpeedValues

BEFORE = "cpu  100 10 50 1000 5 1 4 20 7 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
AFTER = "cpu  160 10 70 1100 5 1 4 40 7 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    stat, pressure = tmp_path / "stat", tmp_path / "cpu"
    monkeypatch.setattr(host_watch, "STAT", stat)
    monkeypatch.setattr(host_watch, "PRESSURE", pressure)
    return stat, pressure


def pressure_text(micros: int) -> str:
    return (
        f"some avg10=1.00 avg60=2.00 avg300=3.00 total={micros}\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n"
    )


def test_stolen_time_is_a_share_of_what_was_asked_for(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, pressure = files
    moments = iter([100.0, 100.02])
    monkeypatch.setattr(
        host_watch,
        "time",
        SimpleNamespace(monotonic=lambda: next(moments), thread_time=time.thread_time),
    )
    stat.write_text(BEFORE)
    pressure.write_text(pressure_text(5_000_000))
    with watching_host() as watched:
        stat.write_text(AFTER)
        pressure.write_text(pressure_text(5_010_000))
    assert watched.stolen_share == 20 / (60 + 20 + 20)  # idle time was not asked for
    assert watched.waiting_share == pytest.approx(0.5)


@pytest.mark.parametrize(
    "text", ["", "cpu 1 2\n", "intr 1 2 3 4 5 6 7 8\n", "cpu a b c d e f g h\n"]
)
def test_a_system_that_does_not_count_says_nothing(files: tuple[Path, Path], text: str) -> None:
    stat, pressure = files
    if text:
        stat.write_text(text)
        pressure.write_text(text)
    with watching_host() as watched:
        pass
    assert watched == HostWatched()


def test_counters_that_stand_still_or_run_backwards_are_no_share() -> None:
    assert stolen_share([5] * 8, [5] * 8) is None
    assert stolen_share([5] * 8, [4] * 7 + [9]) == 1.0


def test_others_have_what_the_evaluation_did_not_use() -> None:
    before, after = [0] * 8, [60, 0, 20, 100, 0, 0, 0, 20]
    assert others_share(before, after, own=30) == 50 / 200
    assert others_share(before, after, own=90) == 0.0  # rounded ticks
    assert others_share(before, before, own=0) is None


def stat_of(folder: Path, number: int, parent: int, *ticks: int) -> None:
    (folder / str(number)).mkdir(exist_ok=True)
    fields = ["S", str(parent), *["0"] * 9, *map(str, ticks)]
    (folder / str(number) / "stat").write_text(f"{number} (a) b) {' '.join(fields)} 0 0\n")


def test_a_family_is_a_process_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_watch, "PROCESSES", tmp_path)
    stat_of(tmp_path, 10, 1, 100, 10, 5, 1)
    stat_of(tmp_path, 11, 10, 40, 4, 0, 0)
    stat_of(tmp_path, 12, 11, 20, 2, 0, 0)
    stat_of(tmp_path, 13, 1, 1000, 0, 0, 0)
    (tmp_path / "14").mkdir()  # ended meanwhile
    assert host_watch._ticks_of(10) == 116 + 44 + 22
    assert host_watch._ticks_of(13) == 1000
    assert host_watch._ticks_of(99) == 0


def test_a_failed_run_is_watched_to_its_end(files: tuple[Path, Path]) -> None:
    files[0].write_text(BEFORE)
    with ExitStack() as run:
        run.enter_context(suppress(RuntimeError))
        watched = run.enter_context(watching_host())
        files[0].write_text(AFTER)
        raise RuntimeError
    assert watched.stolen_share == 0.2


def test_this_machine_is_read_and_the_row_has_it() -> None:
    end = time.monotonic() + 0.1
    with watching_host() as watched:
        while time.monotonic() < end:
            pass
    values = SpeedValues(latency_s=1.0)
    add_watched(values, Watched(host=watched))
    shares = {
        "cpu_stolen_share": watched.stolen_share,
        "cpu_waiting_share": watched.waiting_share,
        "cpu_others_share": watched.others_share,
    }
    known = {name: share for name, share in shares.items() if share is not None}
    assert values.numbers() == {"latency_s": 1.0, **known}
    assert all(0.0 <= share <= 1.0 for share in known.values())
    unknown = SpeedValues(latency_s=1.0)
    add_watched(unknown, Watched())
    assert unknown.numbers() == {"latency_s": 1.0}


def test_unknown_cores_have_no_share(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_watch, "_cores_of", lambda _: set())
    with watching_host() as watched:
        pass
    assert watched.others_share is None


def test_a_servers_thread_and_its_client_have_shares_of_one_core() -> None:
    """The server is a process with a busy main thread; the client is this thread, which waits."""
    busy = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(busy, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            with watching_host(server.pid) as watched:
                begun = host_watch._main_thread_s(server.pid)
                assert begun is not None
                while (host_watch._main_thread_s(server.pid) or 0.0) < begun + 0.1:
                    time.sleep(0.05)
        finally:
            server.kill()
    assert watched.server_share is not None
    assert watched.client_share is not None
    assert 0 < watched.server_share <= 1
    assert 0 <= watched.client_share < 0.1
    values = SpeedValues()
    add_watched(values, Watched(host=watched))
    assert values.server_cpu_share == watched.server_share
    assert values.client_cpu_share == watched.client_share


def test_without_a_server_there_are_no_such_shares() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    for process in (None, ended.pid):
        with watching_host(process) as watched:
            pass
        assert (watched.server_share, watched.client_share) == (None, None)


def test_what_the_watch_itself_reads_is_no_work_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading all processes takes three seconds here, of both threads; the run takes two, in which
    the client works for half a second, and the server for one."""
    moment, sent, served = [0.0], [0.0], [0.0]

    def spend(seconds: float, client: float, server: float) -> int:
        moment[0], sent[0], served[0] = moment[0] + seconds, sent[0] + client, served[0] + server
        return 0

    clocks = SimpleNamespace(monotonic=lambda: moment[0], thread_time=lambda: sent[0])
    monkeypatch.setattr(host_watch, "time", clocks)
    monkeypatch.setattr(host_watch, "_main_thread_s", lambda _: served[0])
    monkeypatch.setattr(host_watch, "_ticks_of", lambda _: spend(3.0, 3.0, 3.0))
    with watching_host(1) as watched:
        spend(2.0, 0.5, 1.0)
    assert (watched.client_share, watched.server_share) == (0.25, 0.5)
