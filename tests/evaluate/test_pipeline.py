"""Real engines on the test model: what is recorded, what a crash leaves, what is invalid."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from safetensors.torch import load_file, save_file

from conf.errors import environment_failure
from conf.schema.load import ScenarioConfig
from conf.schema.model import ModelConfig
from evaluate.measure.engine_memory import EngineMemory
from evaluate.measure.host_watch import watching_host
from evaluate.measure.workload import prompts, schedule
from evaluate.results.rows import Row
from tests.conftest import Run
from tests.evaluate.recorded import faults, rows, team_load
from tests.processes import wait_until_gone

SHORT = ["model=tiny", "scenario=interactive", "scenario.interactive.output_tokens=8"]


def runs(path: Path) -> list[tuple[str, str, str, int]]:
    return [(row.kind, row.checkpoint, row.measure, row.repeat) for row in rows(path)]


@pytest.mark.slow
def test_checkpoints_are_measured_beside_the_original(
    tiny_checkpoint: Path, command_here: Run, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(tiny_checkpoint, tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"not a model")
    what = ["evaluate", "model=tiny", f"checkpoints=[{broken},{tiny_checkpoint}]"]
    text = [
        *("accuracy=quick", "accuracy.tokens=1024", "accuracy.window=128"),
        *("accuracy.continuations=2", "accuracy.continued_tokens=8"),
    ]
    loads = ["scenario=[interactive,long_context]", "scenario.interactive.output_tokens=8"]
    command = [*what, *text, *loads, "repeats=2"]
    result = command_here(*command)
    assert result.returncode == 2, result.stderr
    assert "error: broken: " in result.stderr
    assert "model.safetensors: is not a complete .safetensors file" in result.stderr
    assert "long_context is skipped, 16416 tokens are more than the model's 2048" in result.stderr

    path = tmp_path / "results.jsonl"
    names = ("original", "w8a8_smooth_gptq")
    found = rows(path)
    measured = [row for row in found if row.kind in ("speed", "accuracy")]
    assert [(row.checkpoint, row.measure, row.repeat) for row in measured] == [
        (name, measure, repeat)
        for name in names
        for measure, repeat in (("interactive", 0), ("interactive", 1), ("quick", 0))
    ]
    assert [row.checkpoint for row in found if row.kind == "skipped"] == list(names)
    assert [row.reason[:20] for row in found if row.kind == "failed"] == [f"{broken}"[:20]]
    _check_speed([row for row in measured if row.kind == "speed"])
    original, quantized = (row.values for row in measured if row.kind == "accuracy")
    assert original.tokens == quantized.tokens == 1024 - 1024 / 128
    assert original.perplexity < 1024 / 8
    assert quantized.original_perplexity == pytest.approx(original.perplexity)
    assert quantized.recovery == pytest.approx(1, abs=0.03)

    with pytest.MonkeyPatch.context() as patch:  # what starts no engine needs no memory for one
        no_room = environment_failure("no memory is free")
        patch.setattr(EngineMemory, "check_host", Mock(side_effect=no_room))
        again = command_here(*command)
    assert "6 runs are there already" in again.stderr
    assert [row for row in rows(path) if row.kind != "failed"] == [
        row for row in found if row.kind != "failed"
    ]
    _check_second_opinion(command_here(*what, *text, "scenario=none", "engine=transformers"), path)


def _check_second_opinion(result: subprocess.CompletedProcess[str], path: Path) -> None:
    """transformers and vLLM judge the same checkpoint alike."""
    assert "finding:" not in result.stderr
    judged = {
        (row.checkpoint, row.environment.engine): row.values
        for row in rows(path)
        if row.kind == "accuracy"
    }
    for checkpoint in ("original", "w8a8_smooth_gptq"):
        ours, theirs = (judged[checkpoint, engine] for engine in ("vllm", "transformers"))
        assert ours.perplexity == pytest.approx(theirs.perplexity, rel=0.01)  # as the report asks
    divergence = [judged["w8a8_smooth_gptq", e].divergence_mean for e in ("vllm", "transformers")]
    assert max(divergence) < 0.02


def _check_speed(found: list[Row]) -> None:
    for row in found:
        values = row.values
        assert faults(row) == []
        assert (values.input_tokens, values.output_tokens) == (128, 8)
        assert row.requests.output_tokens == {"8": 1}
        assert 0 < values.ttft_last_s < values.latency_s
        assert values.gap_median_s > 0
        assert values.prefix_hits == 0
        with watching_host() as host:
            sum(range(10**6))
        if host.stolen_share is not None:
            assert 0 <= values.cpu_stolen_share <= 1
        # Not that they are below 1: a busy machine may have seemed slower when it was measured.
        limit, decoding_s = row.limit, values.latency_s - values.ttft_last_s
        prefill_share = limit.prefill_s / values.ttft_last_s
        assert limit.prefill_share == pytest.approx(prefill_share, rel=1e-4)
        assert limit.decode_share == pytest.approx(limit.decode_s / decoding_s, rel=1e-4)
        assert min(limit.prefill_share, limit.decode_share) > 0
        assert row.memory.kv_cache_requests > 1
        assert row.startup.start_s > 0
        assert len(row.environment.checkpoint_sha256) == 64
        assert row.environment.versions["torch"]
    kernels = {row.checkpoint: row.kernels for row in found}
    assert kernels["original"] == {}
    assert "CompressedTensorsW8A8Int8" in kernels["w8a8_smooth_gptq"]
    hashes = {row.checkpoint: row.environment.quantization_sha256 for row in found}
    assert hashes["original"] == ""
    assert len(hashes["w8a8_smooth_gptq"]) == 64


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    # transformers starts three times as fast as vLLM; the process around it is the same.
    command = [sys.executable, "-m", "evaluate", *SHORT, "engine=transformers", *arguments]
    return subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def wait_for_rows(process: subprocess.Popen[str], path: Path, count: int) -> None:
    deadline = time.monotonic() + 900  # of a machine that does much else
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def worker_of(process: subprocess.Popen[str]) -> psutil.Process:
    (found,) = [
        child
        for child in psutil.Process(process.pid).children()
        if "evaluate.measure.worker" in child.cmdline()
    ]
    return found


@pytest.mark.slow
def test_what_a_killed_run_had_finished_stays(tiny: object, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    # The engine dies: what is finished stays, and the failure is told.
    # More than are done before a busy machine has killed it, twice.
    many = ["scenario.interactive.output_tokens=200", "repeats=5"]
    dying = start(tmp_path, *many)
    wait_for_rows(dying, path, 1)
    worker_of(dying).kill()
    _, words = dying.communicate(timeout=900)
    assert dying.returncode == 3
    assert "error: original: the engine was ended by SIGKILL; the system may have been" in words
    done = [row.repeat for row in rows(path) if row.kind == "speed"]
    assert 0 < len(done) < 5

    # We die ourselves: no engine is left behind.
    killed = start(tmp_path, *many)
    wait_for_rows(killed, path, len(done) + 2)
    worker = worker_of(killed)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    wait_until_gone([worker])

    # The same command goes on with what is missing, and force starts over.
    before = path.read_text()
    assert start(tmp_path, *many).wait() == 0
    assert path.read_text().startswith(before)
    assert sorted(row.repeat for row in rows(path) if row.kind == "speed") == [*range(5)]


@pytest.mark.slow
def test_an_engine_that_cannot_run_a_recipe_says_so(command_here: Run, tmp_path: Path) -> None:
    """vLLM's CPU build has no kernel for 8-bit weights alone."""
    result = command_here(
        "evaluate", "model=tiny", "scenario=ours", "weights=random", "recipes=[w8a16_gptq]",
        "repeats=1", **team_load(tmp_path),
    )  # fmt: skip
    assert result.returncode == 2
    assert "error: w8a16_gptq: vLLM has no CPU kernel for w8a16" in result.stderr
    assert runs(tmp_path / "results.jsonl") == [
        ("failed", "w8a16_gptq", "", 0),
        ("speed", "original", "clients", 0),
        ("speed", "original", "arrivals", 0),
    ]
    _check_loads_that_last(*rows(tmp_path / "results.jsonl")[1:])


def _check_loads_that_last(clients: Row, arrivals: Row) -> None:
    """Clients come two at a time, arrivals when they are due, without any server."""
    for row in (clients, arrivals):
        assert row.environment.weights == "random"
        assert faults(row) == []
        assert row.requests.output_tokens == {"32": 4}
    times = [line for line in clients.requests.times_s for _ in range(line[3])]
    started, ended = [line[0] for line in times], [line[2] for line in times]
    assert max(started[:2]) < min(ended) <= started[2]
    load = ScenarioConfig(**arrivals.settings.content())
    due, _ = schedule(prompts(load, "arrivals", 0, 1024), load)
    started = [line[0] for line in arrivals.requests.times_s for _ in range(line[3])]
    assert started == pytest.approx(due, abs=1e-6)


@pytest.mark.slow
def test_a_checkpoint_that_says_one_thing_only_is_invalid(
    tiny: tuple[ModelConfig, Path], command_here: Run, tmp_path: Path
) -> None:
    """With an embedding of zeros, which is the head too, every token is as likely."""
    mute = Path(shutil.copytree(tiny[1], tmp_path / "mute"))
    weights = load_file(mute / "model.safetensors")
    weights["model.embed_tokens.weight"].zero_()
    save_file(weights, mute / "model.safetensors", {"format": "pt"})
    result = command_here(
        "evaluate", *SHORT, "engine=transformers", f"checkpoints=[{mute}]", "repeats=1"
    )
    assert result.returncode == 4
    assert "error: mute: the output is broken: it answers every prompt with token" in result.stderr
    found = {row.checkpoint: row for row in rows(tmp_path / "results.jsonl") if row.kind == "speed"}
    assert faults(found["original"]) == []
    assert "the output is broken" in found["mute"].invalid[0]
    assert "1 invalid" in result.stdout


@pytest.mark.slow
def test_transformers_and_its_profile(tiny: object, command_here: Run, tmp_path: Path) -> None:
    result = command_here(
        "evaluate",
        "model=tiny",
        "engine=transformers",
        "scenario=base",
        "scenario.base.output_tokens=6",
        "accuracy=quick",
        "accuracy.tokens=512",
        "accuracy.window=128",
        "accuracy.continuations=2",
        "accuracy.continued_tokens=8",
        "repeats=1",
        "profile=true",
    )
    assert result.returncode == 0, result.stderr
    speed, profile, accuracy = rows(tmp_path / "results.jsonl")
    assert speed.environment.command.startswith("python -m evaluate model=tiny engine=transf")
    assert (speed.values.input_tokens, speed.values.output_tokens) == (32 * 256, 32 * 6)
    assert speed.environment.engine == "transformers"
    names = [operator.name for operator in profile.values.operators]
    assert any("mm" in name for name in names)
    assert profile.values.kinds_s["matrix products"] > 0
    assert profile.values.phases["decode"].steps == profile.values.steps - 1
    assert "decode steps" in result.stdout
    assert "a prefill step of" in result.stdout
    assert (tmp_path / "results-traces" / "original" / profile.values.trace).is_file()
    assert accuracy.values.perplexity < 1024 / 8


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["scenario=serving", "engine=transformers"],
            "clients_1: a sustained workload needs",
        ),
        (["engine=vllm_server", "profile=true"], "profile=true works only with"),
        (["engine=vllm_server", "accuracy=quick"], "accuracy=quick: works only with"),
        (["engine.tensor_paralel_size=2"], "of them the nearest tensor_parallel_size"),
        (["+modle=x"], "there is no 'modle'"),
        (["scenario=intractive"], "Did you mean interactive"),
        (["mix.intractive=1"], "there is no 'intractive'. Did you mean interactive"),
        (["scenario.interactive.batch=null"], "give one of batch, concurrency and rate"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tiny: object, command_here: Run, overrides: list[str], words: str
) -> None:
    result = command_here("evaluate", "model=tiny", *overrides)
    assert result.returncode == 2
    assert words in result.stderr


@pytest.mark.slow
def test_starts_side_by_side_are_measured_one_at_a_time(
    tiny: object, command_here: Run, tmp_path: Path
) -> None:
    options = ["checkpoints=[]", "side_by_side=2", "starts=2", "repeats=1"]
    result = command_here("evaluate", *SHORT, *options)
    assert result.returncode == 0, result.stderr
    loading = result.stderr.index("original: loading in vllm, start 2 of 2")
    assert loading < result.stderr.index("original: interactive, warming up")
    measured = rows(tmp_path / "results.jsonl")
    assert [(row.start, row.repeat) for row in measured] == [(0, 0), (1, 0)]
    for row in measured:
        assert faults(row) == []
        assert row.startup.content() == {}
        # 136 tokens of a request are 2 blocks of 128, and vLLM keeps one for itself.
        size = row.environment.engine_options["kv_cache_memory_bytes"]
        assert size == 3 * 128 * row.memory.kv_token_bytes
        assert row.memory.kv_cache_requests >= 1
