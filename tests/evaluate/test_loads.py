"""Loads on the test model in real engines: traffic of files, bursts, and a server under load."""

import json
from pathlib import Path

import pytest

from conf.schema.model import ModelConfig
from serve.engine.launch import options, running_server
from tests.conftest import Run, evaluate_config
from tests.evaluate.recorded import faults, rows, team_load


def check_traffic(command_here: Run, url: str, results: Path) -> None:
    """Prefixes that requests of one run share are part of the load. Those of the run before are
    not found again."""
    result = command_here(
        "evaluate", "model=tiny", "scenario=traffic", "engine=vllm_server", f"engine.url={url}",
        "traffic.requests=6", "traffic.turns=2", "traffic.prefix_tokens=260", "repeats=2",
        "traffic.input.distribution=fixed", "traffic.input.median=20", "traffic.rate=20",
        "traffic.output.distribution=fixed", "traffic.output.median=4", f"results={results}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    one, other = rows(results)
    assert faults(one) == faults(other) == []
    assert one.requests.input_tokens == {"280": 3, "304": 3}
    assert one.requests.output_tokens == {"4": 6}
    # Of three conversations, at most two find the prefix of the first one, and three second turns.
    assert 0 < one.values.prefix_hits <= 5 * 280
    assert other.values.prefix_hits <= 5 * 280
    share = (2 * 260 + 3 * 280) / (3 * 280 + 3 * 304)
    assert one.settings.traffic.reusable_share == pytest.approx(share)


def check_bursts(command_here: Run, url: str, results: Path) -> None:
    """A file of texts, sent in bursts."""
    lines = [{"text": f"{number} " * 12, "output_tokens": 3 + number % 2} for number in range(6)]
    path = results.with_name("texts.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = command_here(
        "evaluate", "model=tiny", "scenario=traffic", "engine=vllm_server", f"engine.url={url}",
        f"traffic.path={path}", "traffic.arrivals=bursty", "traffic.rate=50", "repeats=1",
        f"results={results}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (row,) = rows(results)
    assert faults(row) == []
    assert row.requests.output_tokens == {"3": 3, "4": 3}
    assert (row.settings.traffic.arrivals, row.settings.traffic.tokens) == ("bursty", "tokenizer")


def check_conversations(command_here: Run, url: str, results: Path) -> None:
    """ShareGPT's format: clients that wait for their answers, and ask again."""
    turns = [
        {"from": "human", "value": "What is a mutex?"}, {"from": "gpt", "value": "A lock."},
        {"from": "human", "value": "And a semaphore?"}, {"from": "gpt", "value": "A counter."},
    ]  # fmt: skip
    path = results.with_name("conversations.json")
    path.write_text(json.dumps([{"conversations": turns} for _ in range(3)]))
    result = command_here(
        "evaluate", "model=tiny", "scenario=traffic", "engine=vllm_server", f"engine.url={url}",
        f"traffic.path={path}", "traffic.arrivals=closed", "traffic.concurrency=2",
        "traffic.turns=2", "repeats=1", f"results={results}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (row,) = rows(results)
    assert faults(row) == []
    assert row.settings.traffic.arrivals == "closed"
    assert (row.settings.traffic.conversations, row.settings.traffic.requests) == (3, 6)
    assert sum(row.requests.input_tokens.values()) == 6
    assert len(row.requests.input_tokens) == 2, "second turns have the first ones before them"


@pytest.mark.slow
def test_a_trace_is_replayed_in_an_engine_without_http(
    tiny: object, command_here: Run, tmp_path: Path
) -> None:
    """Blocks of equal hashes are found in the prefix cache, and requests are sent at their
    times."""
    lines = [
        {"timestamp": 250 * n, "input_length": 140 + n, "output_length": 4, "hash_ids": [7, n + 20]}
        for n in range(4)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = command_here(
        "evaluate", "model=tiny", "checkpoints=[]", "scenario=traffic", f"traffic.path={trace}",
        "traffic.arrivals=replayed", "traffic.block_tokens=128", "repeats=1",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (row,) = rows(tmp_path / "results.jsonl")
    assert faults(row) == []
    assert row.settings.traffic.arrivals == "replayed"
    assert row.requests.input_tokens == {f"{140 + n}": 1 for n in range(4)}
    sent = sorted(begun for begun, *_ in row.requests.times_s)
    assert sent == pytest.approx([0.0, 0.25, 0.5, 0.75], abs=0.2)
    assert row.values.prefix_hits == 3 * 128


@pytest.mark.slow
def test_a_server_under_load_and_a_warm_prefix_cache(
    tiny: tuple[ModelConfig, Path], command_here: Run, tmp_path: Path
) -> None:
    """A server that outlives a run still holds its prompts: the same tokens again are found."""
    settings = options(evaluate_config().engine) | {
        "enable_prefix_caching": True,
        "max_model_len": 512,
    }
    team = team_load(tmp_path)
    with running_server(tiny[1], settings, "tiny", tmp_path / "server.log") as server:
        url = server.url
        command = [
            "evaluate", "model=tiny", "scenario=[interactive,ours]", "engine=vllm_server",
            "scenario.interactive.output_tokens=32", "scenario.interactive.input_tokens=300",
            f"engine.url={url}", "repeats=1", "force=true",
        ]  # fmt: skip
        result = command_here(*command, **team)
        assert result.returncode == 0, result.stderr
        first = rows(tmp_path / "results.jsonl")
        assert {row.measure for row in first} == {"interactive", "clients", "arrivals"}
        assert all(faults(row) == [] for row in first)
        for row in first:
            if row.measure != "interactive":
                assert row.values.good_share == 1
                assert row.values.goodput_requests_per_s == row.values.requests_per_s
                assert row.requests.output_tokens == {"32": 4}

        again = command_here(*command, **team)
        assert again.returncode == 0
        second = rows(tmp_path / "results.jsonl")[3:]
        assert all("warm prefix cache" in faults(row)[0] for row in second)
        assert {row.generation for row in second} == {1}
        check_traffic(command_here, url, tmp_path / "traffic.jsonl")
        check_bursts(command_here, url, tmp_path / "bursts.jsonl")
        check_conversations(command_here, url, tmp_path / "conversations.jsonl")
    gone = command_here(*command, **team)
    assert gone.returncode == 3
    assert "no server answers there" in gone.stderr
