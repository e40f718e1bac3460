"""Our kernels against vLLM's own, and which product ran for which number of tokens."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.schema.report import ReportConfig
from evaluate.report.contents import make_report
from evaluate.report.decide.decision import decide
from evaluate.report.decide.our_kernels import gain_findings, kernel_gains
from evaluate.report.show.markdown import write_markdown
from evaluate.report.show.notes import findings, notes
from evaluate.report.show.our_kernels.records import (
    band_records,
    gain_records,
    layer_records,
    widest_products,
)
from evaluate.results.rows import SpeedRow
from tests.evaluate.report.made import Cell, accuracy_row, ranked, runs, write

STEADY = (0.999, 1.0, 1.001)
AUTO = {"kernels": "auto"}
NARROW = {
    "kind": "w4a16",
    "rows": 4096,
    "columns": 12288,
    "ranges": [
        {"up_to": 16, "product": "marlin"},
        {"up_to": 4096, "product": "machete"},
        {"up_to": None, "product": "unpack"},
    ],
    "refused": {},
    "extra_bytes": 3 * 2**20,
}
REFUSED = {
    "kind": "fp8",
    "rows": 6144,
    "columns": 4096,
    "ranges": [{"up_to": 1, "product": "one_token_fp8"}, {"up_to": None, "product": "cutlass_fp8"}],
    "refused": {"sparse_lt_fp8": "weights are dense", "sparse_few_fp8": "weights are dense"},
    "extra_bytes": 512,
}
LEFT_TO_VLLM = {"kind": "int8", "rows": 0, "columns": 0, "refused": {"all": "is packed"}}


def cell(checkpoint: str, seconds: float, measure: str, **facts: Any) -> Cell:
    return Cell(checkpoint, [seconds * part for part in STEADY], measure, **facts)


def both_ways(checkpoint: str, gains: dict[str, float], **facts: Any) -> list[Cell]:
    """A checkpoint on vLLM's own kernels in a second, and on ours."""
    sides = []
    for measure, gain in gains.items():
        sides.append(cell(checkpoint, 1.0, measure, kernel="Machete"))
        ours = {"kernel": "Quantline", "options": AUTO, "layers": [NARROW]} | facts
        sides.append(cell(checkpoint, 1 / gain, measure, **ours))
    return sides


def originals(*measures: str) -> list[Cell]:
    return [cell("original", 1.5, measure) for measure in measures]


def test_a_gain_is_that_over_vllms_own_kernels() -> None:
    gains = {"decode": 1.3, "prompts": 1.0, "batch": 0.8}
    (group,) = ranked(runs(*originals(*gains), *both_ways("w4a16", gains)))
    records = {record.scenario: record for record in gain_records(group)}
    assert [records[name].speedup.ratio for name in gains] == pytest.approx([1.3, 1.0, 0.8])
    assert [records[name].speedup.differs for name in gains] == [True, False, True]
    decode = records["decode"]
    assert decode.ttft.ratio == pytest.approx(1.3)
    assert decode.tpot.ratio == pytest.approx(1.3)
    assert (decode.candidate, decode.kernel, decode.vllms) == (
        "w4a16 (kernels=auto)", "Quantline", "Machete",
    )  # fmt: skip
    assert decode.content()["speedup"] == decode.speedup.ratio
    assert decode.content()["ttft"] == decode.ttft.ratio


def test_what_stands_out_names_losses_and_gains_with_scenarios() -> None:
    gains = {"decode": 1.3, "prompts": 1.0, "batch": 0.8, "chat": 1.6}
    (group,) = ranked(runs(*originals(*gains), *both_ways("w4a16", gains)))
    slower, faster = gain_findings(group)
    assert slower.startswith(
        "w4a16 (kernels=auto) runs slower on our kernels than on vLLM's own: "
        "0.80 times as fast in batch (0."
    )
    assert "1.60 times as fast in chat (1." in faster
    assert faster.index("chat") < faster.index("1.30 times as fast in decode")
    assert "prompts" not in faster + slower
    assert findings([group], [])[:2] == [slower, faster]


def test_runs_that_are_too_noisy_to_rank_are_no_finding() -> None:
    (group,) = ranked(runs(*both_ways("w4a16", {"decode": 1.5})), max_spread=1e-6)
    assert len(kernel_gains(group)) == 1
    assert gain_findings(group) == []


@pytest.mark.parametrize(
    "facts",
    [
        {"options": AUTO | {"kv_cache_dtype": "fp8"}},
        {"format": "another"},
        {"layers": []},
        {"layers": [{"kind": "w4a16", "rows": 8, "columns": 8, "refused": {"all": "LoRA"}}]},
        {"options": {"linear_backend": "marlin"}},
    ],
)
def test_only_the_same_checkpoint_and_options_are_compared(facts: dict[str, Any]) -> None:
    (group,) = ranked(runs(*both_ways("w4a16", {"decode": 1.5}, **facts)))
    assert kernel_gains(group) == []


def test_sizes_of_the_kv_cache_may_differ_and_vllm_may_be_named() -> None:
    cells = both_ways("w4a16", {"decode": 1.5}, options=AUTO | {"kv_cache_memory_bytes": 2**30})
    cells[0].options = {"kernels": "vllm", "kv_cache_memory_bytes": 2**31}
    (group,) = ranked(runs(*cells))
    (gain,) = kernel_gains(group)
    assert gain.speedup.ratio == pytest.approx(1.5)
    assert "kernels" not in gain.vllms.candidate


def test_two_machines_are_not_compared_and_that_is_said() -> None:
    vllms, ours = both_ways("w4a16", {"decode": 1.5})
    apart = [replace(vllms, card="a"), replace(ours, card="b")]
    (group,) = ranked(runs(*apart))
    assert kernel_gains(group) == []
    assert any("not on one machine" in note and "w4a16" in note for note in notes([group], ["r"]))
    second = replace(vllms, card="b", latencies=[2 * t for t in vllms.latencies])
    second.options = {"kernels": "vllm"}  # another key, so that it is not a start of the first
    (group,) = ranked(runs(*apart, second))
    (gain,) = kernel_gains(group)
    assert gain.speedup.ratio == pytest.approx(3.0)


def test_names_say_which_kernels_ran_whatever_the_number_of_runs() -> None:
    cells = both_ways("w4a16", {"decode": 1.5, "chat": 1.2})
    few_of_vllm = [one for one in cells if one.measure == "decode" or one.options]
    for some in (cells, few_of_vllm):
        (group,) = ranked(runs(*some))
        assert set(group.candidates) == {"w4a16", "w4a16 (kernels=auto)"}
        assert any("named with kernels=" in note for note in notes([group], ["r"]))
    (group,) = ranked(runs(*(one for one in cells if one.options)))
    assert group.candidates == ["w4a16"]
    assert not any("named with kernels=" in note for note in notes([group], ["r"]))
    assert any(
        note.endswith("all ran on our kernels where these are faster")
        for note in notes([group], ["r"])
    )


def test_names_do_not_say_which_engines_were_loaded_together_unless_that_is_all() -> None:
    together = {"kv_cache_memory_bytes": 2**30, "gpu_memory_utilization": 0.01}
    cells = [
        cell("original", 1.0, "decode", options=AUTO | together),
        cell("w4a16", 0.6, "decode", options=AUTO | together),
        cell("w4a16", 0.9, "decode"),
    ]
    (group,) = ranked(runs(*cells))
    assert set(group.candidates) == {
        "original (kernels=auto)", "w4a16 (kernels=auto)", "w4a16",
    }  # fmt: skip
    (group,) = ranked(runs(*cells, cell("w4a16", 0.9, "decode", options=together)))
    assert "w4a16" in group.candidates
    assert any("kv_cache_memory_bytes" in name for name in group.candidates)


def test_a_list_is_named_as_it_is_typed_and_versions_are_kept_apart() -> None:
    cells = [
        cell("w8a8", 1.0, "decode", options={"kernels": ["one_token", "sparse"]}),
        cell("w8a8", 1.1, "decode", options=AUTO, kernels_version=1),
        cell("w8a8", 1.2, "decode", options=AUTO, kernels_version=2),
        cell("w8a8", 1.3, "decode"),
    ]
    (group,) = ranked(runs(*cells))
    assert set(group.candidates) == {
        "w8a8 (kernels=[one_token,sparse])",
        "w8a8 (kernels=auto, version 1 of our kernels)",
        "w8a8 (kernels=auto, version 2 of our kernels)",
        "w8a8",
    }


def test_a_setup_that_is_faster_somewhere_and_slower_nowhere_is_served() -> None:
    gains = {"decode_bound": 1.1, "long_context": 1.0, "base": 1.0, "high_concurrency": 1.0}
    rows: list[SpeedRow] = runs(*originals(*gains), *both_ways("w4a16", gains))
    for row in rows:
        if row.layer_kernels:  # the larger memory loses a tie
            row.memory = row.memory.with_fields(weights_gib=18.0)
    (answer,) = decide(rows, ReportConfig()).answers
    assert answer.overall.candidate == "w4a16 (kernels=auto)"
    assert "w4a16" in answer.overall.tied
    level = runs(*originals(*gains), *both_ways("w4a16", dict.fromkeys(gains, 1.0)))
    (answer,) = decide(level, ReportConfig()).answers
    assert answer.overall.candidate == "w4a16"


def test_accuracy_counts_on_the_kernels_that_it_was_judged_on(tmp_path: Path) -> None:
    rows = runs(*originals("decode"), *both_ways("w4a16", {"decode": 1.5}))
    judged = accuracy_row("w4a16", 0.999, "no loss seen")
    ours = accuracy_row("w4a16", 0.9, "loss")
    ours.key, ours.environment.engine_options = "ours", AUTO
    results = write(tmp_path / "results.jsonl", [*rows, judged, ours])
    report = make_report(ReportConfig(results=[str(results)]))
    recovery = {record.candidate: record.recovery for record in report.sets.cells}
    assert recovery["w4a16"] == 0.999
    assert recovery["w4a16 (kernels=auto)"] == 0.9
    write(results, [*rows, judged])
    report = make_report(ReportConfig(results=[str(results)]))
    assert {r.recovery for r in report.sets.cells if r.checkpoint != "original"} == {0.999}
    assert any("judged on other kernels" in note for note in report.notes)


def test_the_command_of_a_second_start_has_the_kernels() -> None:
    cells = [cell("original", 1.0, "chat"), cell("original", 1.0, "chat", options=AUTO)]
    cells += [cell("w8a8", 0.96, "chat"), cell("w8a8", 0.96, "chat", options=AUTO)]
    (group,) = ranked(runs(*cells))
    for workload in group.workloads:
        for entry in workload.entries:
            if entry.ratio is not None:
                entry.ratio.second_start_decides = True
    commands = [note for note in notes([group], ["r.jsonl"]) if "second start" in note]
    assert len(commands) == 2
    assert [" engine.kernels=auto starts=2" in command for command in commands].count(True) == 1


def test_layers_say_their_products_their_memory_and_why_others_were_refused() -> None:
    options = {"options": AUTO, "layers": [NARROW, REFUSED, LEFT_TO_VLLM]}
    (group,) = ranked(runs(*both_ways("w4a16", {"decode": 1.5, "chat": 1.1}, **options)))
    narrow, refused, left = layer_records(group)
    assert narrow.layers == "w4a16 4096x12288"
    assert narrow.products == "marlin to 16, machete to 4,096, unpack beyond"
    assert narrow.extra_mib == 3
    assert refused.refused == "sparse_lt_fp8, sparse_few_fp8: weights are dense"
    assert (left.layers, left.products, left.refused) == ("int8", "vLLM's own", "all: is packed")


def test_bands_cover_every_number_of_tokens_once() -> None:
    layers = [NARROW, REFUSED, LEFT_TO_VLLM]
    (group,) = ranked(runs(*both_ways("w4a16", {"decode": 1.5}, layers=layers)))
    heading, *bands = band_records(group)
    assert (heading.layers, heading.candidate) == ("", "w4a16 (kernels=auto)")
    assert len({band.row for band in (heading, *bands)}) == 1 + len(layers)
    drawn = {band.row: [b for b in bands if b.row == band.row] for band in bands}
    for own in drawn.values():
        assert own[0].first == 1
        assert all(one.end == other.first for one, other in itertools.pairwise(own))
        assert own[-1].end == 16384
        assert own[-1].tokens.endswith("and more")
    texts = [(band.short, band.tokens) for band in bands if band.layers.startswith("fp8")]
    assert texts == [("one_token", "1"), ("cutlass", "2 and more")]
    assert set(widest_products([heading, *bands])) == {
        "vLLM's own", "cutlass", "machete", "marlin", "unpack", "one_token",
    }  # fmt: skip


def test_another_plan_for_the_same_layers_is_a_row_of_its_own() -> None:
    cells = both_ways("w4a16", {"decode": 1.5})
    cells += both_ways("w4a16", {"chat": 1.5}, layers=[NARROW | {"ranges": []}])
    (group,) = ranked(runs(*cells))
    assert [record.layers for record in layer_records(group)] == [
        "w4a16 4096x12288",
        "w4a16 4096x12288 #2",
    ]


def test_report_md_has_the_section_only_where_our_kernels_were_offered(tmp_path: Path) -> None:
    def section(cells: list[Cell]) -> str:
        results = write(tmp_path / "results.jsonl", runs(*originals("decode"), *cells))
        write_markdown(make_report(ReportConfig(results=[str(results)])), tmp_path)
        text = (tmp_path / "report.md").read_text()
        return text.partition("## Our kernels\n")[2].partition("\n## ")[0]

    cells = both_ways("w4a16", {"decode": 1.5})
    text = section(cells)
    assert "| decode   | w4a16 (kernels=auto) | 1.50 (" in text
    assert "marlin to 16, machete to 4,096, unpack beyond" in text
    assert "plot-hand-overs.svg" in text
    assert "plot-gains.svg" in text
    ours_alone = section(cells[1:])
    assert "No checkpoint was measured on vLLM's own kernels" in ours_alone
    assert "plot-gains.svg" not in ours_alone
    assert section(cells[:1]) == ""
