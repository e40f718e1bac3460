"""Serving: the command that is printed is one that works."""

import contextlib
import json
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.models import cached_folder
from serve.engine import model_folder
from tests.conftest import Run, quantize_config

START_LIMIT_S = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_a_checkpoint_answers_one_prompt(tiny_checkpoint: Path, run_command: Run) -> None:
    result = run_command("serve", f"checkpoint={tiny_checkpoint}", "prompt='What is a class?'")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.strip()) > 20


@pytest.mark.slow
def test_the_server_answers_and_stops_cleanly(tiny_checkpoint: Path, run_command: Run) -> None:
    port = free_port()
    dry = run_command(
        "serve", f"checkpoint={tiny_checkpoint}", "model=tiny", f"port={port}", "dry_run=true"
    )
    command = shlex.split(dry.stdout.strip())
    assert command[command.index("--host") + 1] == "127.0.0.1"
    from serve.engine import environment

    server = subprocess.Popen(command, env=environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    try:
        body = {"model": "tiny", "prompt": "A class is", "max_tokens": 8, "temperature": 0}
        answer = ask(f"http://127.0.0.1:{port}/v1/completions", body, server)
        assert answer["usage"]["completion_tokens"] == 8
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
    with socket.socket() as probe:  # a server may take the port again at once
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        probe.listen()


def ask(url: str, body: dict[str, object], server: subprocess.Popen[bytes]) -> dict[str, object]:
    """Asks until the server is up."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit:
        assert server.poll() is None, "the server stopped"
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(request) as reply:
            return json.load(reply)
        time.sleep(1)
    raise AssertionError("the server did not come up")


def test_options_reach_the_servers_command_line(tiny_checkpoint: Path, run_command: Run) -> None:
    result = run_command(
        "serve",
        f"checkpoint={tiny_checkpoint}",
        "dry_run=true",
        "+engine.options.enable_prefix_caching=false",
        "+engine.options.speculative_config={method: ngram}",
    )
    words = shlex.split(result.stdout)
    assert "--no-enable-prefix-caching" in words
    assert words[words.index("--speculative-config") + 1] == '{"method": "ngram"}'
    assert words[words.index("--served-model-name") + 1] == "tiny"


def test_another_host_needs_a_key(tiny_checkpoint: Path, run_command: Run) -> None:
    arguments = ("serve", f"checkpoint={tiny_checkpoint}", "host=0.0.0.0", "dry_run=true")
    refused = run_command(*arguments)
    assert refused.returncode == 2
    assert "VLLM_API_KEY" in refused.stderr
    allowed = run_command(*arguments, VLLM_API_KEY="secret-key")
    assert allowed.returncode == 0
    assert "secret-key" not in allowed.stdout + allowed.stderr


def test_no_checkpoint_says_how_to_make_one(run_command: Run) -> None:
    result = run_command("serve", "model=tiny")
    assert result.returncode == 2
    assert "python -m quantize model=tiny" in result.stderr


def test_a_missing_original_is_made_by_quantize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    model = quantize_config("model=tiny", "model.weights=random").model
    assert model_folder(model) == cached_folder(model)
    assert (cached_folder(model) / "model.safetensors").is_file()
    with pytest.raises(QuantlineError) as error:
        model_folder(quantize_config("model.path=/nowhere").model)
    assert error.value.exit_code == 2
    assert "there is no folder /nowhere" in capfd.readouterr().err
