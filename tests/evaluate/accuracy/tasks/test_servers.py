"""Which servers run at the same time, and with what options."""

import json
from pathlib import Path

import pytest

from conf.schema.commands import EvaluateConfig
from conf.schema.load import EngineOptions
from evaluate.accuracy.tasks.plan import Checkpoint, Missing
from evaluate.accuracy.tasks.servers import WorkerPlan, worker_groups
from evaluate.measure import side_by_side
from evaluate.measure.engine_memory import EngineMemory
from tests.conftest import evaluate_config
from tests.evaluate.test_plan import CONFIG, ENVIRONMENT

NAMES = ("original", "large", "w8", "w4")
HELD_GIB = {"original": 60.0, "large": 90.0, "w8": 30.0, "w4": 20.0}
KV_TOKEN_BYTES = 2 * 2 * 2 * 16 * 2  # keys and values, layers, heads, numbers of a head, bytes


@pytest.fixture
def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Missing]:
    """Checkpoints that hold so much memory, beside the log-probabilities of tiny's vocabulary."""
    monkeypatch.setattr(EngineMemory, "held_by", lambda _, folder, options: HELD_GIB[folder.name])
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(CONFIG))
    return [
        Missing(
            Checkpoint(name, tmp_path / name, "5ha", 2000, ENVIRONMENT, {"arc": Path("s")}),
            ["arc"],
        )
        for name in NAMES
    ]


def configured(*overrides: str) -> EvaluateConfig:
    return evaluate_config("model=tiny", "accuracy=questions", *overrides)


def planned(missing: list[Missing], *overrides: str) -> list[list[WorkerPlan]]:
    return worker_groups(configured(*overrides), ENVIRONMENT.engine_options, missing)


def names(groups: list[list[WorkerPlan]]) -> list[list[str]]:
    return [[plan.checkpoint for plan in group] for group in groups]


def options_of(plan: WorkerPlan) -> EngineOptions:
    return dict(plan.engine.options)


@pytest.mark.parametrize(
    "overrides", [(), ("side_by_side=1",), ("side_by_side=4", "engine=transformers")]
)
def test_one_worker_asks_all_one_after_another(
    missing: list[Missing], overrides: tuple[str, ...]
) -> None:
    ((plan,),) = planned(missing, *overrides)
    assert plan == WorkerPlan(missing, configured(*overrides).engine)


def test_a_single_checkpoint_has_no_neighbours(missing: list[Missing]) -> None:
    ((plan,),) = planned(missing[:1], "side_by_side=4")
    assert options_of(plan) == {}


def test_servers_that_run_together_have_caches_of_a_stated_size(
    missing: list[Missing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "room_gib", lambda: None)
    (group,) = planned(missing, "side_by_side=4")
    assert [plan.checkpoint for plan in group] == list(NAMES)
    assert [plan.neighbours for plan in group] == [3] * 4
    # 2,000 tokens of a request are 16 blocks of 128, and vLLM keeps one for itself.
    size = (32 * 16 + 1) * 128 * KV_TOKEN_BYTES
    for plan in group:
        assert options_of(plan) == {
            "kv_cache_memory_bytes": size,
            "gpu_memory_utilization": 0.01,
        }
    few = planned(missing, "side_by_side=4", "engine.max_num_seqs=2")[0][0]
    assert options_of(few)["kv_cache_memory_bytes"] == (2 * 16 + 1) * 128 * KV_TOKEN_BYTES


def test_the_original_is_in_the_first_group_of_those_that_fit(
    missing: list[Missing],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(side_by_side, "room_gib", lambda: 113.0)
    groups = planned(missing, "side_by_side=3")
    assert names(groups) == [["original", "w8"], ["large", "w4"]]
    assert "side_by_side=3: 2 engines fit on the GPU at once" in capsys.readouterr().err
    groups = planned(missing[:3], "side_by_side=3")
    assert names(groups) == [["original", "w8"], ["large"]]
    assert options_of(groups[1][0]) == {}, "it has the whole GPU"


def test_where_one_fits_they_are_asked_one_after_another(
    missing: list[Missing],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(side_by_side, "room_gib", lambda: 20.0)
    assert names(planned(missing, "side_by_side=2")) == [[""]]
    assert "side_by_side=2: 1 engine fits on the GPU" in capsys.readouterr().err
