"""What makes a run invalid, one reason at a time."""

from dataclasses import replace
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.schema.load import EngineConfig
from evaluate.measure.engines import LoadRequest
from evaluate.measure.engines.vllm_log import LateCompiling, loaded
from evaluate.measure.gpu_watch import GpuSample, Watched, others_of, summarize
from evaluate.measure.metrics import Request
from evaluate.measure.validity import Observed, constant_output, reasons
from evaluate.measure.workload import Load, PlannedRequest
from evaluate.results.row_types import Memory, Startup

LOAD = Load([PlannedRequest([1, 2, 3, 4], 2)] * 2, at_once=2)
GOOD = [Request(4, [1.0, 2.0]), Request(4, [1.0, 2.0])]


def test_a_clean_run_has_no_reason() -> None:
    seen = Observed(prefix_hits=1, prefix_queries=100, clock_share=0.95)
    assert reasons(GOOD, LOAD, seen) == []
    held_down_by_power = Observed(clock_share=0.8, power_capped=0.3)
    assert reasons(GOOD, LOAD, held_down_by_power) == []


@pytest.mark.parametrize(
    ("requests", "seen", "words"),
    [
        (GOOD, Observed(prefix_hits=2, prefix_queries=100), "2% of the prompt tokens came"),
        (GOOD, Observed(compiled=["Triton kernel x"]), "compiled while it was timed: Triton"),
        (GOOD, Observed(throttled=["hardware slowdown"]), "throttled: hardware slowdown"),
        (GOOD, Observed(clock_share=0.8), "clock was at 80%"),
        (GOOD, Observed(clock_share=0.8, power_capped=0.1), "clock was at 80%"),
        (GOOD, Observed(other_processes=1), "1 other processes"),
        ([GOOD[0], Request(3, [1.0, 2.0])], Observed(), "1 requests had 3 tokens in, asked for 4"),
        ([GOOD[0], Request(4, [1.0])], Observed(), "1 requests had 1 tokens out, asked for 2"),
        ([Request(4, [1.0, 1.0])] * 2, Observed(), "all tokens of an answer arrived at once"),
        ([GOOD[0], Request(4, [], error="HTTP 500")], Observed(), "1 of 2 requests failed: HTTP"),
    ],
)
def test_each_fault_is_named(requests: list[Request], seen: Observed, words: str) -> None:
    (reason,) = reasons(requests, LOAD, seen)
    assert words in reason


def test_hits_of_shared_prefixes_are_part_of_traffic() -> None:
    seen = Observed(prefix_hits=90, prefix_queries=100)
    assert reasons(GOOD, replace(LOAD, shares_prefixes=True), seen) == []


def test_a_client_that_sends_too_late_is_a_fault() -> None:
    late = [replace(request, send_delay=0.3) for request in GOOD]
    (reason,) = reasons(late, LOAD, Observed())
    assert reason == "the client sent requests 300 ms too late, it is too slow"
    slightly_late = [replace(request, send_delay=0.1) for request in GOOD]
    assert reasons(slightly_late, LOAD, Observed()) == []


def test_constant_and_empty_answers_are_broken() -> None:
    assert constant_output([[], []]) == "it answers nothing"
    assert "token 0 alone" in constant_output([[0, 0, 0], [0, 0]])
    assert constant_output([[0, 0], [5, 5]]) == ""


def test_the_log_says_what_was_chosen(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "INFO Selected CutlassInt8ScaledMMLinearKernel for CompressedTensorsW8A8Int8\n"
        "INFO Using MacheteLinearKernel for CompressedTensorsWNA16\n"
        "INFO Using 'MARLIN' WNA16 MoE backend.\n"
        "INFO Using VLLM_CUTLASS Fp8 MoE backend out of potential backends: ['TRITON'].\n"
        "INFO Model loading took 8.80 GiB memory and 1.886785 seconds\n"
        "INFO GPU KV cache size: 858,080 tokens\n"
        "INFO torch.compile took 32.28 s in total\n"
        "INFO Graph capturing finished in 4 secs, took 0.96 GiB\n"
    )
    load = LoadRequest(tmp_path, EngineConfig(), 64, False, log)
    found = loaded(load)
    assert found.kernels == {
        "CompressedTensorsW8A8Int8": "CutlassInt8ScaledMMLinearKernel",
        "CompressedTensorsWNA16": "MacheteLinearKernel",
        "WNA16 MoE": "MARLIN",
        "Fp8 MoE": "VLLM_CUTLASS",
    }
    assert found.memory == Memory(weights_gib=8.8, kv_cache_tokens=858080, graphs_gib=0.96)
    assert found.startup == Startup(load_s=1.886785, compile_s=32.28, capture_s=4)
    late = LateCompiling(log)
    assert late.since_last_look() == []
    with log.open("a") as file:
        file.write("WARNING Triton kernel JIT compilation during inference: _fwd. This causes\n")
    assert late.since_last_look() == ["Triton kernel JIT compilation during inference: _fwd"]
    assert late.since_last_look() == []
    with pytest.raises(QuantlineError, match="mostly zeros"):
        loaded(replace(load, dummy=True))


def test_all_kernels_of_a_scheme_are_kept_in_one_order(tmp_path: Path) -> None:
    lines = [
        "INFO Using QuantlineWeightOnlyLinearKernel for CompressedTensorsWNA16",
        "INFO Using MacheteLinearKernel for CompressedTensorsWNA16",
        "INFO Selected CutlassInt8ScaledMMLinearKernel for CompressedTensorsW8A8Int8",
    ]
    log = tmp_path / "log"
    for order in (lines, lines[::-1], lines * 2):
        log.write_text("\n".join(order))
        kernels = loaded(LoadRequest(tmp_path, EngineConfig(), 64, False, log)).kernels
        assert kernels == {
            "CompressedTensorsWNA16": "MacheteLinearKernel, QuantlineWeightOnlyLinearKernel",
            "CompressedTensorsW8A8Int8": "CutlassInt8ScaledMMLinearKernel",
        }


@pytest.mark.parametrize(
    ("why", "capped", "throttled"),
    [(0x1, 0, []), (0x4, 1 / 2, []), (0x8 | 0x4, 1 / 2, ["hardware slowdown"]), (None, None, [])],
)
def test_a_clock_that_is_held_down_by_power_is_no_throttling(
    why: int | None, capped: float | None, throttled: list[str]
) -> None:
    seen = Watched()
    other = None if why is None else 0
    watched = [
        GpuSample(1980.0, 20.0, other),
        GpuSample(1500.0, 30.0, why),
        GpuSample(0.0, 25.0, None),
    ]
    summarize(watched, seen)
    assert seen == Watched(None, 30.0, 1740.0, capped, throttled)


@pytest.mark.parametrize(
    ("during", "others"),
    [
        ({3, 4}, 0),  # the engine and its neighbour
        ({1, 3, 4}, 1),  # there before, and still there
        ({3}, 0),  # the neighbour ended
        ({3, 4, 5}, 1),  # came later
        ({1, 2, 3, 5}, 3),
    ],
)
def test_processes_that_ended_before_a_run_do_not_count(during: set[int], others: int) -> None:
    before, at_turn = frozenset({1, 2}), frozenset({1, 3, 4})
    assert others_of(frozenset(during), before, at_turn) == others
