"""What is missing of a target, planned from its files and from rows: nothing is started."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.schema.load import ScenarioConfig
from conf.schema.traffic import CapacityConfig, TrafficLoad
from evaluate.measure.targets import Target
from evaluate.plan import Inspected, Plan, Planner
from evaluate.results.row_types import Environment
from evaluate.results.rows import Row, TrialRow
from evaluate.run import turns_of
from serve.tensors import Tensor
from tests.conftest import evaluate_config
from tests.evaluate.made_rows import quick_accuracy_row, row_with, speed_row

ENVIRONMENT = Environment(
    device="NVIDIA H200",
    versions={"vllm": "0.25.1"},
    engine="vllm",
    engine_options={"dtype": "bfloat16"},
    variables={},
)
CONFIG = {
    "max_position_embeddings": 2048,
    "vocab_size": 1024,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "head_dim": 16,
}
WEIGHT = {"model.layers.0.mlp.up_proj.weight": Tensor("BF16", (64, 64))}
LOADS = ("scenario=[interactive,long_context]", "repeats=2", "starts=2")


def inspected(name: str = "w8") -> Inspected:
    return Inspected(Target(name, Path("/m")), Path("/m"), CONFIG, "5ha", None, WEIGHT)


def plan(
    *overrides: str, rows: list[Row] | None = None, name: str = "w8", has_view: bool = False
) -> Plan:
    config = evaluate_config("model=tiny", *LOADS, *overrides)
    return Planner(config, ENVIRONMENT, rows or [], lambda _: has_view).plan(inspected(name))


def row(made: Plan, start: int, repeat: int, **changes: Any) -> Row:
    stated = {"model": "tiny", "checkpoint": "w8", "measure": "interactive"}
    place = {"repeat": repeat, "start": start, "key": made.keys["interactive"]}
    return speed_row(**(stated | place | changes))


def test_everything_is_missing_of_a_new_target() -> None:
    made = plan()
    assert made.repeats == [{"interactive": [0, 1]}, {"interactive": [0, 1]}]
    assert made.runs == 4
    assert made.skipped == {"long_context": "16416 tokens are more than the model's 2048"}
    assert list(made.scenarios) == ["interactive"]
    assert made.context == made.scenarios["interactive"].tokens
    assert made.environment.engine_options["max_model_len"] == made.context
    assert made.environment.weights == "trained"


def test_only_rows_of_the_same_key_and_checkpoint_that_count_stand() -> None:
    made = plan()
    rows = [
        row(made, 0, 0),
        row(made, 0, 1, invalid=["throttled"]),
        row(made, 1, 0, checkpoint="another"),
        row(made, 1, 0, key="another"),
        row(made, 1, 1),
        row(made, 1, 2),
        row(made, 2, 0),
    ]
    again = plan(rows=rows)
    assert again.repeats == [{"interactive": [1]}, {"interactive": [0]}]
    assert again.recorded == [rows[0], rows[4]]
    forced = plan("force=true", rows=rows)
    assert (forced.runs, forced.recorded) == (4, [])


def test_an_accuracy_that_stands_is_not_read_again_but_for_the_originals_view() -> None:
    text = "accuracy=quick"
    made = plan(text)
    assert made.judges
    judged = quick_accuracy_row(model="tiny", checkpoint="w8", key=made.keys["quick"])
    assert not plan(text, rows=[judged]).judges
    assert plan(text, rows=[judged]).judged == judged
    assert not plan(text, has_view=True).judges
    original = plan(text, name="original")
    stands = quick_accuracy_row(model="tiny", key=original.keys["quick"])
    assert plan(text, rows=[stands], name="original").judges, "others are compared with its view"


def test_how_much_accuracy_is_enough_changes_no_key() -> None:
    asked = plan("accuracy=quick", "accuracy.min_recovery=0.99")
    assert asked.keys == plan("accuracy=quick").keys
    assert asked.keys != plan("accuracy=quick", "accuracy.tokens=512").keys


def test_side_by_side_states_the_cache_that_every_engine_gets() -> None:
    alone, beside = plan(), plan("side_by_side=2")
    assert "kv_cache_memory_bytes" not in alone.options
    size = beside.options["kv_cache_memory_bytes"]
    assert beside.environment.engine_options["kv_cache_memory_bytes"] == size
    assert beside.held_gib > 6 + size / 2**30
    assert beside.keys != alone.keys


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), [[0], [1]]),
        (("side_by_side=2",), [[0, 1]]),
        (("starts=1", "profile=true"), [[0]]),
    ],
)
def test_turns_are_the_starts_that_lack_something(
    overrides: tuple[str, ...], expected: list[list[int]]
) -> None:
    config = evaluate_config("model=tiny", *LOADS, *overrides)
    made = plan(*overrides)
    turns = turns_of(config, [made])
    assert [[turn.start for turn in group] for group in turns] == expected
    rows = [row(made, start, repeat) for start in range(2) for repeat in range(2)]
    left = turns_of(config, [plan(*overrides, rows=rows)])
    assert [[turn.start for turn in group] for group in left] == ([[0]] if config.profile else [])


def test_only_the_originals_view_is_shared_by_results_files() -> None:
    """The view of another checkpoint is removed once it is judged."""
    quick = ("accuracy=quick", "engine=vllm")
    views = {
        name: {plan(*quick, f"results={file}.jsonl", name=name).view for file in ("a", "b", "./b")}
        for name in ("original", "w8")
    }
    assert {name: len(paths) for name, paths in views.items()} == {"original": 1, "w8": 2}


def test_a_capacity_search_goes_on_with_the_trials_of_its_own_card() -> None:
    capacity = CapacityConfig()
    search = ScenarioConfig(from_traffic=True, traffic=TrafficLoad(), capacity=capacity)
    config = replace(evaluate_config("model=tiny"), scenario={"capacity": search})
    here = ENVIRONMENT.with_fields(card="A")
    key = Planner(config, here, []).plan(inspected()).keys["capacity"]

    def trial(card: str, rate: float, share: float) -> TrialRow:
        stated = {"model": "tiny", "checkpoint": "w8", "measure": "capacity", "key": key}
        return row_with(
            TrialRow,
            **stated,
            environment={"card": card},
            values={"good_share": share},
            settings={
                "rate": rate,
                "requests": 200,
                "traffic": {"source": "sharegpt"},
                "capacity": capacity.recorded(),
            },
        )

    here_alone, elsewhere = trial("A", 8.0, 1.0), trial("B", 8.1, 0.5)
    made = Planner(config, here, [here_alone, elsewhere]).plan(inspected())
    assert made.trials == {"capacity": [here_alone]}
    assert made.repeats[0]["capacity"][0] == 0
    ended = [elsewhere, trial("B", 8.0, 1.0)]
    made = Planner(config, here, [here_alone, *ended]).plan(inspected())
    assert 0 not in made.repeats[0]["capacity"], "it has ended on another card"
