"""Plans and their store."""

import json
from pathlib import Path

import pytest

from serve.kernels.plans.plan import Plan, Step, Timing, plan_of
from serve.kernels.plans.store import Identity, PlanStore, StoredPlan, read_file, stored_files
from serve.kernels.record import TokenRange

H200 = Identity("NVIDIA H200", "2.11.0+cu130", "0.25.1")
PLAN = Plan(
    (Step(16, "few", (("block", 64),)), Step(None, "own")),
    (Timing(1, "few", (("block", 64),), 3.5, 1000), Timing(1, "own", (), 7.25, 1000)),
)


def stored(key: str, candidates: list[str], plan: Plan) -> StoredPlan:
    return StoredPlan(key, tuple(candidates), plan, 4, 4, "int8")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))


def test_a_number_of_tokens_finds_its_step() -> None:
    plan = plan_of({1: ("a", ()), 4: ("a", ()), 16: ("b", ()), 64: ("b", (("x", 1),))})
    assert plan.steps == (Step(4, "a"), Step(16, "b"), Step(None, "b", (("x", 1),)))
    products = [plan.step(tokens) for tokens in (1, 4, 5, 16, 17, 10**6)]
    assert [step.product for step in products] == ["a", "a", "b", "b", "b", "b"]
    assert [step.options for step in products[3:]] == [(), (("x", 1),), (("x", 1),)]
    assert plan.ranges == (TokenRange(4, "a"), TokenRange(None, "b"))
    assert plan.products == ["a", "b"]


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (Step(4, "a"),),
        (Step(None, "a"), Step(None, "b")),
        (Step(8, "a"), Step(4, "b"), Step(None, "c")),
        (Step(0, "a"), Step(None, "b")),
    ],
)
def test_steps_that_are_no_plan(steps: tuple[Step, ...]) -> None:
    with pytest.raises(ValueError, match="a plan"):
        Plan(steps)


def test_a_plan_is_found_again_by_its_key_and_candidates() -> None:
    store = PlanStore(H200)
    assert store.find("int8/4x4", ["own", "few"]) is None
    store.keep(stored("int8/4x4", ["few", "own"], PLAN))
    store.keep(stored("int8/8x8", ["few", "own"], plan_of({1: ("own", ())})))
    found = PlanStore(H200).find("int8/4x4", ["own", "few"])
    assert found == PLAN
    assert found.timings == PLAN.timings
    assert store.find("int8/4x4", ["own"]) is None
    assert store.find("int8/4x8", ["own", "few"]) is None
    store.keep(stored("int8/4x4", ["own", "few"], plan_of({1: ("own", ())})))
    assert len(stored_files()[0].plans) == 2


@pytest.mark.parametrize(
    "other",
    [
        Identity("NVIDIA H100", H200.torch, H200.vllm),
        Identity(H200.gpu, "2.12.0", H200.vllm),
        Identity(H200.gpu, H200.torch, "0.32.0"),
        Identity(H200.gpu, H200.torch, H200.vllm, 99),
    ],
)
def test_plans_of_another_gpu_or_version_do_not_count(
    other: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    PlanStore(H200).keep(stored("int8/4x4", ["own"], PLAN))
    assert PlanStore(other).find("int8/4x4", ["own"]) is None
    other.path.write_bytes(H200.path.read_bytes())
    assert PlanStore(other).find("int8/4x4", ["own"]) is None
    assert "of another GPU" in caplog.text


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"identity": 1}', '"x"', "cut"])
def test_a_damaged_file_is_ignored_and_written_again(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = PlanStore(H200)
    store.keep(stored("int8/4x4", ["own"], PLAN))
    whole = H200.path.read_text()
    H200.path.write_text(whole[:-40] if damage == "cut" else damage)
    assert store.find("int8/4x4", ["own"]) is None
    assert "is no file of plans" in caplog.text
    store.keep(stored("int8/4x4", ["own"], PLAN))
    assert store.find("int8/4x4", ["own"]) == PLAN


def test_a_stored_plan_that_is_none_is_ignored() -> None:
    PlanStore(H200).keep(stored("int8/4x4", ["own"], PLAN))
    content = json.loads(H200.path.read_text())
    content["plans"][0]["plan"]["steps"][1]["up_to"] = 8
    H200.path.write_text(json.dumps(content))
    assert read_file(H200.path) is None


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("QUANTLINE_CACHE", str(file))
    store = PlanStore(H200)
    with store.measuring():
        store.keep(stored("int8/4x4", ["own"], PLAN))
    assert store.find("int8/4x4", ["own"]) is None
    assert "cannot be written" in caplog.text
