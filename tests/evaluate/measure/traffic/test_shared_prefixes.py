"""What prompts share, and that exported traffic shares the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from evaluate.measure.traffic.resolved import TokenPassage, read_resolved
from evaluate.measure.traffic.resolving import read_traffic, with_traffic
from evaluate.measure.traffic.shared_prefixes import SharedBlock, shared_blocks
from evaluate.measure.workload import PlannedRequest, traffic_load
from tests.conftest import Run, evaluate_config


def ids(*tokens: int) -> TokenPassage:
    return TokenPassage(ids=list(tokens))


def test_parts_end_where_another_prompt_goes_on_in_another_way() -> None:
    prefix = TokenPassage(seed="prefix", tokens=500)
    prompts = [
        [prefix, ids(1, 2, 3, 4)],
        [ids(1, 2, 3)],
        [prefix, ids(1, 2), ids(3, 9)],
        [prefix, ids(1)],
        [TokenPassage(seed="own", tokens=500)],
        [prefix, ids(1, 2, 3, 4)],
    ]
    one, two, three = SharedBlock(1, 501), SharedBlock(2, 2), SharedBlock(3, 1)
    assert shared_blocks(prompts) == [
        [one, two, three],
        [],
        [one, two],
        [one],
        [],
        [one, two, three],
    ]
    assert shared_blocks([[prefix]]) == [[]]
    assert shared_blocks([[ids(3)], [ids(3)]]) == [[SharedBlock(1, 1)]] * 2


def planned(path: Path) -> list[PlannedRequest]:
    """The requests of a file, in the order of their lengths."""
    config = evaluate_config("model=tiny", "scenario=traffic", f"traffic.path={path}")
    folder = path.parent
    config = with_traffic(config, read_traffic(config.traffic), folder)
    scenario = config.scenario["traffic"]
    assert scenario.traffic is not None
    load = traffic_load(scenario, read_resolved(scenario.traffic.sha256), "traffic", 0, 9999)
    return sorted(load.requests, key=lambda request: len(request.prompt))


def common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


HASHED = [
    {"timestamp": 0, "input_length": 1030, "output_length": 3, "hash_ids": [8, 9, 4]},
    {"timestamp": 7, "input_length": 1100, "output_length": 4, "hash_ids": [8, 9, 5]},
    {"timestamp": 9, "input_length": 700, "output_length": 5, "hash_ids": [8, 7]},
]
TEXTS = [
    {"text": text, "system_prompt": prompt, "output_tokens": 3}
    for text, prompt in (
        ("a b c", "You are."),
        ("a bb ccc", "You are."),
        ("a b c", "He is here, as ever."),
    )
]


@pytest.mark.parametrize("records", [HASHED, TEXTS])
def test_exported_traffic_shares_the_same_prefixes(
    records: list[dict[str, Any]], command_here: Run, tmp_path: Path
) -> None:
    config = {"max_position_embeddings": 4096, "vocab_size": 9999}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source, exported = tmp_path / "source.jsonl", tmp_path / "exported.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ["evaluate.traffic", "model=tiny", "weights=random", "engine.max_model_len=4096"]
    result = command_here(*command, f"traffic.path={source}")
    assert result.returncode == 0, result.stderr
    assert "shared: " in result.stderr
    exported.write_text(result.stdout)
    before, after = planned(source), planned(exported)
    assert [len(request.prompt) for request in before] == [len(r.prompt) for r in after]
    for one in range(len(before)):
        for other in range(one):
            assert common(before[one].prompt, before[other].prompt) == common(
                after[one].prompt, after[other].prompt
            )
    assert any(common(before[0].prompt, request.prompt) for request in before[1:])
