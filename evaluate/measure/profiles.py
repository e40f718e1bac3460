"""Reads a trace: the time of operators, by kind, and the gaps in which the device is idle."""

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from evaluate.results.row_values import Operator, Phase, ProfileValues

LISTED = 30
MICRO = 1e-6
PRODUCTS = "matrix products"
# The first pattern that a kernel's or operator's name contains says its kind.
KINDS = (
    ("attention", r"flash|attention|attn|fmha|paged|sdpa|reshape_and_cache|rotary|rope"),
    ("quantization", r"quant|scaled_fp8|int8_scal|dequant"),
    (PRODUCTS, r"gemm|gemv|matmul|cutlass|machete|marlin|scaled_mm|::mm|addmm|linear"
               r"|cublas|nvjet|splitk|onednn|dnnl|bmm|dot_kernel|_mm\b"),
    ("norms", r"norm|rms"),
    ("activations", r"silu|act_and_mul|gelu|sigmoid"),
    ("sampling", r"sampl|argmax|softmax|topk|top_k|multinomial|logits|sort|penalt"),
    ("memory", r"memcpy|memset|copy_|fill_|cat\b|index|gather|embedding"),
)  # fmt: skip
GAPS = "gaps"
OTHER = "other"
PREFILL, DECODE = "prefill", "decode"
# vLLM's annotation of every step, with the number of requests in prefill. We write the same.
STEP = re.compile(r"execute_(?:\d+_)?context_(\d+)")
TILE = re.compile(r"cute::tuple<(?:cute::C<\d+>,? ?)+>")
NAMESPACE = re.compile(r"(?:\w+|\(anonymous namespace\))::")
OPERATOR, KERNEL = "cpu_op", "kernel"
ON_GPU = (KERNEL, "gpu_memcpy", "gpu_memset")
TIMED = (OPERATOR, *ON_GPU)
MARKS = ("user_annotation", "gpu_user_annotation")  # of a CPU, of a GPU


@dataclass
class TraceEvent:
    """A timed event of a trace, in microseconds."""

    name: str
    start: float
    length: float
    thread: int | str | None
    external: int | None
    """Links a kernel to the operator that launched it."""
    category: str = ""

    @property
    def end(self) -> float:
        return self.start + self.length


def profile_values(trace: Path, steps: int) -> ProfileValues:
    """The table of operators and the shares by kind of a trace that torch's profiler wrote."""
    opener = gzip.open if trace.suffix == ".gz" else open
    with opener(trace, "rt", encoding="utf-8") as file:
        content = json.load(file)
    events = trace_events(content["traceEvents"])
    return operators(events).with_fields(trace=trace.name, steps=steps)


def trace_events(entries: list[dict[str, Any]]) -> list[TraceEvent]:
    """The timed operators and kernels of a trace, and the marks of its steps."""
    return [
        TraceEvent(
            name=str(entry["name"]),
            start=entry["ts"],
            length=entry.get("dur", 0.0),
            thread=entry.get("tid"),
            external=(entry.get("args") or {}).get("External id"),
            category=entry["cat"],
        )
        for entry in entries
        if (entry.get("cat") in TIMED and "dur" in entry) or entry.get("cat") in MARKS
    ]


@dataclass
class ProfiledPhase:
    """Prefill or decode steps of a profile. The name is empty if the trace does not mark steps."""

    name: str
    steps: int
    window_s: float
    kinds_s: dict[str, float]


def phases(values: ProfileValues) -> list[ProfiledPhase]:
    """The prefill and decode phases, or one phase for all if the trace does not mark steps."""
    if not values.phases:
        return [ProfiledPhase("", 1, values.window_s, values.kinds_s)]
    return [
        ProfiledPhase(name, phase.steps, phase.window_s, phase.kinds_s)
        for name, phase in values.phases.items()
    ]


def operators(events: list[TraceEvent]) -> ProfileValues:
    """Self times by operator and by kind, in seconds; on a GPU the kinds are of its kernels."""
    cpu = [event for event in events if event.category == OPERATOR]
    kernels = [event for event in events if event.category in ON_GPU]
    self_us = self_times(cpu)
    launched: dict[int | None, float] = defaultdict(float)
    for kernel in kernels:
        launched[kernel.external] += kernel.length
    table: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for event, self_length in zip(cpu, self_us, strict=True):
        line = table[event.name]
        line[0] += self_length
        line[1] += launched.get(event.external, 0.0) if event.external is not None else 0.0
        line[2] += 1
    for kernel in kernels:
        line = table[kernel.name]
        line[1] += kernel.length
        line[2] += 1
    device = kernels or cpu
    lengths = [kernel.length for kernel in kernels] if kernels else self_us
    if _window(device) <= 0:
        raise ValueError("it has no timed operator")
    ordered = sorted(table.items(), key=lambda item: -max(item[1][1], item[1][0]))
    return ProfileValues(
        device="gpu" if kernels else "cpu",
        operators=[
            Operator(
                name=name,
                self_cpu_s=cpu_us * MICRO,
                self_cuda_s=cuda_us * MICRO,
                calls=int(calls),
            )
            for name, (cpu_us, cuda_us, calls) in ordered[:LISTED]
        ],
        kinds_s=_by_kind(device, lengths),
        window_s=_window(device) * MICRO,
        phases=_phases(events, device, lengths),
    )


def self_times(events: list[TraceEvent]) -> list[float]:
    """Each event's length without the events inside it, thread by thread."""
    lengths = [event.length for event in events]
    threads: dict[int | str | None, list[int]] = defaultdict(list)
    for place, event in enumerate(events):
        threads[event.thread].append(place)
    for places in threads.values():
        places.sort(key=lambda place: (events[place].start, -events[place].length))
        open_events: list[int] = []
        for place in places:
            while open_events and events[open_events[-1]].end <= events[place].start:
                open_events.pop()
            if open_events:
                lengths[open_events[-1]] -= events[place].length
            open_events.append(place)
    return lengths


def readable(name: str) -> str:
    """A kernel's name without parameters and namespaces, with tiles as numbers. The rest still
    differs between kernels of one template. An operator's name, like aten::mm, is unchanged."""
    if "<" not in name and "(" not in name:
        return name
    template, closed, _ = name.removeprefix("void ").partition(">(")
    name = template + ">" if closed else template
    name = TILE.sub(lambda tile: "x".join(re.findall(r"\d+", tile[0])), name)
    return NAMESPACE.sub("", name).replace(" >", ">")


def kind_of(name: str) -> str:
    for kind, pattern in KINDS:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return OTHER


def _by_kind(events: list[TraceEvent], lengths: list[float]) -> dict[str, float]:
    """Seconds by kind, and the idle time."""
    kinds_s: dict[str, float] = defaultdict(float)
    for event, length in zip(events, lengths, strict=True):
        kinds_s[kind_of(event.name)] += length * MICRO
    kinds_s[GAPS] = (_window(events) - busy(events)) * MICRO
    return dict(kinds_s)


def _phases(
    events: list[TraceEvent], device: list[TraceEvent], lengths: list[float]
) -> dict[str, Phase]:
    """Prefill steps and decode steps; each step lasts until the next one begins. Empty if no step
    is marked on the device's timeline."""
    category = MARKS[any(event.category == KERNEL for event in events)]
    marks = sorted(
        (event.start, PREFILL if int(step[1]) else DECODE)
        for event in events
        if event.category == category and (step := STEP.match(event.name))
    )
    if not marks or not device:
        return {}
    end = max(event.end for event in device)
    steps: dict[str, int] = defaultdict(int)
    windows: dict[str, float] = defaultdict(float)
    kinds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (first, phase), (last, _) in pairwise([*marks, (end, "")]):
        inside = [n for n, event in enumerate(device) if first <= event.start < last]
        steps[phase] += 1
        windows[phase] += (last - first) * MICRO
        for n in inside:
            kinds[phase][kind_of(device[n].name)] += lengths[n] * MICRO
        idle = last - first - busy([device[n] for n in inside])
        kinds[phase][GAPS] += max(0.0, idle) * MICRO
    return {
        phase: Phase(steps=steps[phase], window_s=window, kinds_s=dict(kinds[phase]))
        for phase, window in windows.items()
        if window > 0
    }


def busy(events: list[TraceEvent]) -> float:
    """Microseconds in which at least one event ran."""
    total = 0.0
    end = float("-inf")
    for event in sorted(events, key=lambda event: event.start):
        total += max(0.0, event.end - max(event.start, end))
        end = max(end, event.end)
    return total


def _window(events: list[TraceEvent]) -> float:
    if not events:
        return 0.0
    return max(event.end for event in events) - min(event.start for event in events)
