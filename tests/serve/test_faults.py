"""Servers that die, are killed, or never start, forced with a small program in vLLM's place."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from conf.errors import QuantlineError
from conf.process.endings import reason_in
from conf.schema.commands import ServeConfig
from serve import server
from serve.engine import process
from serve.engine.process import ServerProcess, check_port, free_port
from serve.option_reasons import ChosenOptions
from serve.resolving import ServedCheckpoint
from serve.server import Watch, examples
from tests.conftest import evaluate_config
from tests.processes import is_alive, wait_until_gone

# Answers /health; after that it does what its last argument says.
PROGRAM = """
import http.server, json, os, sys, threading, time
port, lives, then = int(sys.argv[1]), sys.argv[2], sys.argv[3]
name, running, slow = os.path.basename(os.environ['QUANTLINE_SERVER_STATE']), 0, 0
with open(lives, 'a') as file: file.write('.')
if then == 'early': sys.exit('RuntimeError: no kernel for this')
was_healthy = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(slow)
        self.send_response(200); self.end_headers()
        self.wfile.write(json.dumps({'running': running, 'server': name}).encode())
        if self.path == '/health': was_healthy.set()
    def log_message(self, *_): pass
served = http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler)
threading.Thread(target=served.serve_forever, daemon=True).start()
if then == 'stays': time.sleep(600)
was_healthy.wait(300)
if then == 'memory': sys.exit('torch.OutOfMemoryError: CUDA out of memory.')
if then == 'killed': os.kill(os.getpid(), 9)
sys.exit('ValueError: it broke')
"""


def watch(tmp_path: Path, then: str, restart: str = "never") -> Watch:
    port = free_port()
    made = evaluate_config("model=tiny")
    config = ServeConfig(
        model=made.model, engine=made.engine, gpu=made.gpu, port=port, canary="off", restart=restart
    )
    command = [sys.executable, "-c", PROGRAM, str(port), str(tmp_path / "lives"), then]
    return Watch(config, ServedCheckpoint(tmp_path, "tiny"), ChosenOptions({}), command)


def wait_until_listening(port: int, process: "subprocess.Popen[bytes]") -> None:
    """A process that never listens ends the wait where it ends, or after its own sleep."""
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 60).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError("it ended before it listened")


def lives(tmp_path: Path) -> int:
    return len((tmp_path / "lives").read_text())


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("early", "stopped with 1: RuntimeError: no kernel for this"),
        ("memory", "ran out of memory: lower engine.max_model_len"),
        ("killed", "ended by SIGKILL; the system may have been out of memory"),
        ("broken", "stopped with 1: ValueError: it broke"),
    ],
)
def test_a_server_that_dies_says_why_and_exits_3(then: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(QuantlineError, match=words) as caught:
        watch(tmp_path, then).run()
    assert caught.value.exit_code == 3
    assert len(str(caught.value).splitlines()) == 1


def test_one_that_never_came_up_is_not_started_again(tmp_path: Path) -> None:
    with pytest.raises(QuantlineError):
        watch(tmp_path, "early", "on-failure").run()
    assert lives(tmp_path) == 1


def test_restart_brings_it_back_after_a_pause_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "FIRST_PAUSE_S", 1.0)
    pauses: list[float] = []

    def wait(self: Watch, seconds: float, signals: server.Signals) -> None:
        pauses.append(seconds)
        signals.stops = int(len(pauses) == 3)

    monkeypatch.setattr(Watch, "_wait", wait)
    watch(tmp_path, "broken", "on-failure").run()
    assert pauses == [1.0, 2.0, 4.0]
    assert lives(tmp_path) == 3
    assert "starting again in 4 s" in capsys.readouterr().err


def test_a_signal_ends_it_and_frees_the_port(tmp_path: Path) -> None:
    watched = watch(tmp_path, "stays")
    ended = threading.Event()

    def stop_when_ready() -> None:
        while watched.ready_since is None:
            if ended.wait(0.05):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop_when_ready)
    stopping.start()
    try:
        watched.run()
    finally:
        ended.set()
        stopping.join()
    assert lives(tmp_path) == 1
    check_port("127.0.0.1", watched.config.port)


def test_under_nohup_a_closed_terminal_stops_no_server() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with server.stop_signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.is_wanted
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with server.stop_signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.is_wanted
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_busy_port_is_known_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(QuantlineError, match=f"port={port}: cannot be used") as caught:
            check_port("127.0.0.1", port)
    assert caught.value.exit_code == 3


def test_a_port_that_we_choose_is_free_and_no_program_gets_it_by_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_out = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(given_out.read_text().split()[0]) if given_out.is_file() else 32768
    port = free_port()
    assert port < max(lowest, 30_000)
    monkeypatch.setattr(process, "OWN_PORTS", [port])
    no_port = pytest.raises(QuantlineError, match="there is no free port")
    with socket.create_server(("127.0.0.1", port)), no_port:
        free_port()
    assert free_port() == port


def test_a_server_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from serve.engine.process import ServerProcess\n"
        "p = ServerProcess([sys.executable, '-c', 'import time; time.sleep(600)'], {}, '', "
        f"Path({str(tmp_path / 'log')!r}))\n"
        "print(p.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    wait_until_gone([child])


def test_phases_of_a_start_are_read_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    found = ServerProcess([sys.executable, "-c", "pass"], dict(os.environ), "", log)
    found.process.wait()
    assert found.phase() == "starting vLLM"
    for words, phase in (
        ("Loading safetensors checkpoint shards:  50% Completed", "reading weights"),
        ("Dynamo bytecode transform time: 3 s", "compiling"),
        ("GPU KV cache size: 812,160 tokens", "allocating the KV cache"),
        ("Capturing CUDA graphs (mixed): 30%", "capturing graphs"),
    ):
        with log.open("a") as file:
            file.write(words + "\n")
        assert found.phase() == phase
    found.stop()


def test_printed_lines_hold_no_key(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    lines = examples(ServedCheckpoint(tmp_path, "tiny"), "http://127.0.0.1:8000", with_key=True)
    assert all("VLLM_API_KEY" in line for line in lines)
    assert "/v1/chat/completions" in lines[0]
    (tmp_path / "key").write_text("sesame\n")
    named = examples(
        ServedCheckpoint(tmp_path, "tiny"), "http://[::1]:8000", True, str(tmp_path / "key")
    )
    assert named[0].startswith("curl http://[::1]:8000/v1/chat/completions ")
    assert "$(head -n1 " in named[0]
    assert "sesame" not in "".join(named)


def test_printed_lines_can_be_pasted_whatever_the_names_are(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s a "key"'
    folder.mkdir()
    (folder / "key").write_text("sesame\n")
    served = ServedCheckpoint(tmp_path, 'it\'s "mine"')
    curl, python = examples(served, "http://127.0.0.1:8000", True, str(folder / "key"))
    shown = subprocess.run(
        ["bash", "-c", curl.replace("curl", "printf '%s\\n'", 1)],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert "Authorization: Bearer sesame" in shown
    assert json.loads(shown[-1])["model"] == served.name
    compile(shlex.split(python)[2], "printed", "exec")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            ["(EngineCore) ValueError: no room", "RuntimeError: failed. See root cause above."],
            "(EngineCore) ValueError: no room",
        ),
        (
            ["torch.AcceleratorError: bad", '"POST /v1/models HTTP/1.1" 500 Internal Server Error'],
            "torch.AcceleratorError: bad",
        ),
        (["vllm.EngineDeadError: gone"], "vllm.EngineDeadError: gone"),
        (["nothing", "last words"], "last words"),
    ],
)  # fmt: skip
def test_the_line_that_tells_why_is_found(lines: list[str], reason: str) -> None:
    assert reason_in("\n".join(lines)) == reason


def test_what_a_dead_server_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(p.pid, flush=True)\n"
    )
    log = tmp_path / "log"
    found = ServerProcess([sys.executable, "-c", script], dict(os.environ), "", log, True)
    found.process.wait()
    orphan = psutil.Process(int(log.read_text().split()[0]))
    assert is_alive(orphan)
    found.stop()
    assert not is_alive(orphan)


def test_another_program_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    port = free_port()
    variables = dict(os.environ) | {"QUANTLINE_SERVER_STATE": "/somebody/else"}
    other = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(port), str(tmp_path / "lives"), "stays"], env=variables
    )
    try:
        wait_until_listening(port, other)
        sleeping = [
            sys.executable,
            "-c",
            "import time; time.sleep(2); raise SystemExit('Error: x')",
        ]
        url = f"http://127.0.0.1:{port}"
        found = ServerProcess(sleeping, dict(os.environ), url, tmp_path / "log")
        with pytest.raises(QuantlineError, match="stopped with 1"):
            found.wait_until_healthy()
        found.stop()
    finally:
        other.kill()
        other.wait()


def test_a_server_that_answers_slowly_is_given_its_time(tmp_path: Path) -> None:
    program = PROGRAM.replace(", 0, 0\n", ", 3, 7\n")
    port = free_port()
    command = [sys.executable, "-c", program, str(port), str(tmp_path / "lives"), "stays"]
    url = f"http://127.0.0.1:{port}"
    found = ServerProcess(command, dict(os.environ), url, tmp_path / "log")
    wait_until_listening(port, found.process)
    begin = time.monotonic()
    assert found.stop(drain_s=6).cut > 0
    assert time.monotonic() - begin > 6
