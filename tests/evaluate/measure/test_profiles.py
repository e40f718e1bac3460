"""A trace made by hand: self times, kinds, gaps."""

from typing import Any

import pytest

from evaluate.measure.profiles import (
    ProfiledPhase,
    TraceEvent,
    busy,
    kind_of,
    operators,
    phases,
    readable,
    self_times,
    trace_events,
)


def entry(cat: str, name: str, start: float, length: float, external: int = 0) -> dict[str, Any]:
    return {
        "cat": cat, "name": name, "ts": start, "dur": length, "tid": 1,
        "args": {"External id": external},
    }  # fmt: skip


def test_an_operator_is_charged_for_itself_alone() -> None:
    events = [
        TraceEvent("outer", 0, 100, 1, None),
        TraceEvent("inner", 10, 30, 1, None),
        TraceEvent("innermost", 15, 5, 1, None),
        TraceEvent("next", 100, 10, 1, None),
        TraceEvent("elsewhere", 0, 100, 2, None),
    ]
    assert self_times(events) == [70, 25, 5, 10, 100]


def test_kernels_are_what_a_gpus_time_goes_to() -> None:
    found = operators(
        trace_events(
            [
                entry("cpu_op", "aten::mm", 0, 20, external=7),
                entry("kernel", "cutlass_gemm", 30, 40, external=7),
                entry("kernel", "rms_norm_kernel", 80, 20),
                {"cat": "ac2g", "name": "arrow", "ts": 0},
            ]
        )
    )
    assert found.device == "gpu"
    lines = {line.name: line for line in found.operators}
    assert lines["aten::mm"].self_cpu_s == pytest.approx(20e-6)
    assert lines["aten::mm"].self_cuda_s == pytest.approx(40e-6)
    assert lines["cutlass_gemm"].calls == 1
    assert found.kinds_s == pytest.approx({"matrix products": 40e-6, "norms": 20e-6, "gaps": 10e-6})
    assert found.window_s == pytest.approx(70e-6)


def test_steps_that_read_and_steps_that_decode_are_told_apart() -> None:
    """By the marks on the GPU's own time line, where there are some."""
    found = operators(
        trace_events(
            [
                entry("user_annotation", "execute_context_1(128)_generation_0(0)", 0, 10),
                entry("user_annotation", "execute_context_0(0)_generation_1(1)", 12, 10),
                entry("gpu_user_annotation", "execute_context_1(128)_generation_0(0)", 100, 40),
                entry("gpu_user_annotation", "execute_context_0(0)_generation_1(1)", 200, 40),
                entry("gpu_user_annotation", "execute_context_0(0)_generation_1(1)", 300, 40),
                entry("kernel", "cutlass_gemm", 100, 60),
                entry("kernel", "cutlass_gemm", 200, 20),
                entry("kernel", "flash_fwd_kernel", 240, 10),
                entry("kernel", "cutlass_gemm", 300, 20),
            ]
        )
    ).phases
    assert found["prefill"].steps == 1
    assert found["prefill"].window_s == pytest.approx(100e-6)
    assert found["prefill"].kinds_s == pytest.approx({"matrix products": 60e-6, "gaps": 40e-6})
    assert found["decode"].steps == 2
    assert found["decode"].window_s == pytest.approx(120e-6)
    assert found["decode"].kinds_s == pytest.approx(
        {"matrix products": 40e-6, "attention": 10e-6, "gaps": 70e-6}
    )


def test_a_prompt_that_comes_late_is_no_part_of_decoding() -> None:
    marks = [
        ("1(8)_generation_0(0)", 0),
        ("0(0)_generation_1(1)", 10),
        ("1(8)_generation_1(1)", 20),
    ]
    found = operators(
        trace_events(
            [
                *(entry("user_annotation", f"execute_context_{name}", at, 5) for name, at in marks),
                entry("user_annotation", "execute_context_0(0)_generation_2(2)", 70, 5),
                entry("cpu_op", "aten::mm", 0, 15),  # runs on into the next step
                entry("cpu_op", "aten::mm", 20, 40),
                entry("cpu_op", "aten::mm", 70, 10),
            ]
        )
    ).phases
    assert (found["prefill"].steps, found["decode"].steps) == (2, 2)
    assert found["prefill"].window_s == pytest.approx(60e-6)
    assert found["decode"].window_s == pytest.approx(20e-6)
    assert found["prefill"].kinds_s["gaps"] == pytest.approx(10e-6)


def test_marks_of_the_host_say_nothing_of_a_gpu() -> None:
    mark = entry("user_annotation", "execute_context_1(8)_generation_0(0)", 0, 5)
    assert operators(trace_events([mark, entry("kernel", "cutlass_gemm", 100, 20)])).phases == {}


def test_without_marks_a_profile_is_one_piece() -> None:
    found = operators(trace_events([entry("kernel", "cutlass_gemm", 0, 20)]))
    assert found.phases == {}
    assert phases(found) == [ProfiledPhase("", 1, pytest.approx(20e-6), found.kinds_s)]


def test_time_that_overlaps_counts_once() -> None:
    events = [
        TraceEvent("a", 0, 10, 1, None),
        TraceEvent("b", 5, 10, 2, None),
        TraceEvent("c", 20, 1, 1, None),
    ]
    assert busy(events) == 16


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("machete_mm_kernel", "matrix products"),
        ("void flash_fwd_splitkv_kernel<...>", "attention"),
        ("fused_add_rms_norm_kernel", "norms"),
        ("scaled_fp8_quant_kernel", "quantization"),
        ("dynamic_scaled_int8_quant_kernel", "quantization"),
        ("silu_and_mul", "activations"),
        ("aten::argmax", "sampling"),
        ("aten::mm", "matrix products"),
        ("something", "other"),
    ],
)
def test_names_tell_the_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::mm", "aten::mm"),
        ("nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT", "nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT"),
        (
            "void cutlass::device_kernel<vllm::gemm<signed char, cute::tuple<cute::C<64>, "
            "cute::C<128>, cute::C<256> >, cutlass::Tma>::GemmKernel>(vllm::gemm<int>::Params)",
            "device_kernel<gemm<signed char, 64x128x256, Tma>::GemmKernel>",
        ),
        ("void vllm::cache<bf16, (vllm::Kind)0>(bf16 const*)", "cache<bf16, (Kind)0>"),
    ],
)
def test_a_kernels_name_is_shown_without_what_all_of_its_kind_share(name: str, short: str) -> None:
    assert readable(name) == short
