"""Engines that stand loaded together: who goes with whom."""

from pathlib import Path

import pytest

from conf.schema.load import ScenarioConfig
from evaluate.measure.run_parts import own_memory
from evaluate.measure.side_by_side import (
    cache_tokens,
    engine_options,
    fitting_groups,
    groups,
    share_model_infos,
    variables,
)
from evaluate.results.row_types import Memory


@pytest.mark.parametrize(
    ("needs", "most", "room", "expected"),
    [
        ([1, 1, 1, 1, 1], 2, None, [[1, 1], [1, 1], [1]]),
        ([1, 1, 1], 3, None, [[1, 1, 1]]),
        ([30, 20, 60, 90, 10], 4, 100, [[30, 60], [20], [90, 10]]),
        ([30, 31, 43, 40, 45, 57], 7, 133, [[30, 43, 40], [31, 45, 57]]),
        ([300, 20], 2, 100, [[300], [20]]),
        ([1, 1], 1, None, [[1], [1]]),
        ([], 2, 100, []),
    ],
)
def test_as_many_together_as_are_allowed_and_fit(
    needs: list[float], most: int, room: float | None, expected: list[list[float]]
) -> None:
    assert groups(needs, most, float, room) == expected


@pytest.mark.parametrize(
    ("starts", "most", "room", "expected"),
    [
        ([["a3", "b3", "c3"]] * 2, 4, None, [["a3", "b3", "c3"]] * 2),
        ([["a3", "b3"]] * 2, 4, None, [["a3", "b3", "a3", "b3"]]),
        ([["a3", "b3", "c3"], ["c3"]], 2, None, [["a3", "b3"], ["c3", "c3"]]),
        ([["a3", "b3", "c3"], []], 2, None, [["a3", "b3"], ["c3"]]),
        ([["a9", "b8", "c2"]] * 2, 5, 19.0, [["a9", "b8", "c2"]] * 2),
        ([], 2, None, []),
    ],
)
def test_all_have_a_first_start_before_a_second_unless_that_takes_longer(
    starts: list[list[str]],
    most: int,
    room: float | None,
    expected: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The digit is the memory."""
    monkeypatch.setattr("evaluate.measure.side_by_side.room_gib", lambda: room)
    assert fitting_groups(starts, most, lambda start: float(start[1])) == expected


@pytest.mark.parametrize(
    ("starts", "most", "said"),
    [
        ([["a6"], ["a6"]], 2, "side_by_side=2: 1 engine fits on the GPU"),
        ([["a4", "b4", "c4"]], 3, "side_by_side=3: 2 engines fit on the GPU at once"),
        ([["a4", "b4"]], 3, ""),
        ([["a3", "b3", "c3"]] * 2, 4, ""),
    ],
)
def test_it_is_said_where_fewer_fit_than_were_asked_for(
    starts: list[list[str]],
    most: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("evaluate.measure.side_by_side.room_gib", lambda: 10.0)
    fitting_groups(starts, most, lambda start: float(start[1]))
    assert " ".join("".join(capsys.readouterr()).split()) == said


def test_the_cache_holds_every_request_of_the_heaviest_load() -> None:
    small = ScenarioConfig(input_tokens=300, output_tokens=8, batch=1)
    batch = ScenarioConfig(input_tokens=300, output_tokens=8, batch=12)
    assert cache_tokens([small], 64, 1024) == (3 + 1) * 128
    assert cache_tokens([small, batch], 64, 1024) == (12 * 3 + 1) * 128
    assert cache_tokens([batch], 64, 4) == (4 * 3 + 1) * 128
    assert cache_tokens([], 4096, 1024) == (32 + 1) * 128
    lasting = ScenarioConfig(
        input_tokens=300, output_tokens=8, concurrency=3, requests=50, ttft_ms=1.0, tpot_ms=1.0
    )
    assert cache_tokens([lasting], 64, 1024) == (3 * 3 + 1) * 128


def test_what_was_asked_for_stands_above_what_neighbours_need() -> None:
    assert engine_options({}, 7)["kv_cache_memory_bytes"] == 7
    assert engine_options({"kv_cache_memory_bytes": 9}, 7)["kv_cache_memory_bytes"] == 9


def test_engines_together_have_the_caches_of_their_checkpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/somewhere")
    assert variables(["fp8"], 0) == {}
    first = {"VLLM_CACHE_ROOT": "/somewhere/beside/fp8"}
    assert variables(["fp8", "w8a8"], 0) == variables(["w8a8", "fp8"], 1) == first
    # Two starts of one checkpoint that compile at once.
    assert variables(["fp8", "w8a8", "fp8"], 2) == {"VLLM_CACHE_ROOT": "/somewhere/beside/fp8~2"}
    monkeypatch.delenv("VLLM_CACHE_ROOT")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert variables(["w8", "fp8"], 1) == {"VLLM_CACHE_ROOT": "/caches/vllm/beside/fp8"}
    names = ["fp8", "fp8-2", "fp8", "fp8~2", "my/team's", "my team's", "my_team_s"]
    roots = {variables(names, place)["VLLM_CACHE_ROOT"] for place in range(len(names))}
    assert len(roots) == len(names)
    assert {str(Path(root).parent) for root in roots} == {"/caches/vllm/beside"}


def test_neighbours_leave_no_size_of_graphs() -> None:
    seen = Memory(weights_gib=8.8, kv_cache_tokens=512.0, graphs_gib=13.0)
    assert own_memory(seen).numbers() == {"weights_gib": 8.8, "kv_cache_tokens": 512.0}
    assert own_memory(Memory(weights_gib=8.8)).numbers() == {"weights_gib": 8.8}


def test_engines_share_the_descriptions_of_model_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "caches"))
    first, second = (variables(["fp8", "w8a8"], place) for place in (0, 1))
    share_model_infos(first)
    folders = [Path(each["VLLM_CACHE_ROOT"]) for each in (first, second)]
    (folders[0] / "modelinfos" / "Qwen3.json").write_text("{}")
    own = folders[1] / "modelinfos"
    share_model_infos(second)
    share_model_infos(second)  # a second start finds the link
    assert (own / "Qwen3.json").read_text() == "{}"
    assert (tmp_path / "caches" / "modelinfos" / "Qwen3.json").is_file()
    (tmp_path / "caches").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "beside" / "w8a8" / "modelinfos" / "Qwen3.json").is_file()
    share_model_infos({})


def test_descriptions_that_an_engine_has_made_for_itself_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    own = variables(["fp8", "w8a8"], 0)
    made = Path(own["VLLM_CACHE_ROOT"]) / "modelinfos"
    made.mkdir(parents=True)
    share_model_infos(own)
    assert made.is_dir()
    assert not made.is_symlink()
