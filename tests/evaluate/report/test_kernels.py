"""One checkpoint on two kernels: what is drawn and what is said."""

from evaluate.report.decide.comparison import ComparisonGroup, comparison_groups
from evaluate.report.decide.kernels import kernel_findings
from evaluate.report.decide.ranking import rank_all
from evaluate.report.show.records import kernel_records
from tests.evaluate.report.made import Cell, runs

BATCHES = (1, 4, 16, 64)
STEADY = (0.999, 1.0, 1.001)


def group_of(machete: list[float], marlin: list[float], **others: str) -> ComparisonGroup:
    """Speed-ups of w4a16 over an original that takes as many seconds as it has requests."""
    cells = []
    for batch, slow, quick in zip(BATCHES, machete, marlin, strict=True):
        name = f"batch_{batch}"
        for checkpoint, speedup, kernel, options in (
            ("original", 1.0, "", {}),
            ("w4a16", slow, "Machete", {}),
            ("w4a16", quick, "Marlin", {"linear_backend": "marlin"} | others),
            ("w8a8", 1.2, "CutlassInt8ScaledMM", {}),
        ):
            latencies = [batch / speedup * part for part in STEADY]
            cells.append(Cell(checkpoint, latencies, name, batch, kernel=kernel, options=options))
    (found,) = comparison_groups(runs(*cells))
    rank_all([found], 0.1)
    return found


def test_the_batch_where_one_kernel_overtakes_the_other_is_named() -> None:
    group = group_of([1.1, 1.1, 1.1, 1.0], [1.4, 1.3, 0.9, 0.6])
    assert kernel_findings(group) == [
        "w4a16 runs faster on Marlin below batch 8, on Machete above (128 tokens in, 64 out)"
    ]
    level_between = group_of([1.1, 1.1, 1.1, 1.0], [1.4, 1.1, 1.1, 0.6])
    assert kernel_findings(level_between) == [
        "w4a16 runs faster on Marlin up to batch 1, on Machete from 64 on (128 tokens in, 64 out)"
    ]


def test_a_kernel_that_always_wins_is_named_and_one_that_cannot_be_told_is_not() -> None:
    always = group_of([1.1, 1.1, 1.1, 1.1], [1.4, 1.3, 1.3, 1.3])
    assert kernel_findings(always) == [
        "w4a16 runs faster on Marlin than on Machete (128 tokens in, 64 out)"
    ]
    at_times = group_of([1.1, 1.1, 1.3, 1.3], [1.4, 1.3, 1.3, 1.3])
    assert kernel_findings(at_times) == [
        "w4a16 runs faster on Marlin than on Machete or level with it (128 tokens in, 64 out)"
    ]
    other_options = group_of([1.1] * 4, [1.4] * 4, kv_cache_dtype="fp8")
    assert kernel_findings(other_options) == kernel_records(other_options) == []
    assert kernel_findings(group_of([1.1] * 4, [1.1] * 4)) == []
    assert kernel_findings(group_of([1.1] * 4, [1.4, 0.9, 1.4, 1.4])) == []


def test_what_is_too_noisy_to_rank_decides_nothing() -> None:
    group = group_of([1.1] * 4, [1.4] * 4)
    for workload in group.workloads:
        for entry in workload.entries:
            entry.rank = None
    assert kernel_findings(group) == []


def test_only_checkpoints_with_a_choice_are_drawn() -> None:
    records = kernel_records(group_of([1.1, 1.1, 1.1, 1.0], [1.4, 1.3, 0.9, 0.6]))
    assert {(record.panel, record.kernel) for record in records} == {
        ("w4a16, 128 tokens in, 64 out", "Machete"),
        ("w4a16, 128 tokens in, 64 out", "Marlin"),
    }
    assert sorted({record.size for record in records}) == list(BATCHES)


def test_our_kernels_are_compared_with_vllms_own() -> None:
    cells = []
    for batch in BATCHES:
        for checkpoint, speedup, kernel, options in (
            ("original", 1.0, "", {"kernels": "auto"}),
            ("w8a8", 1.1, "CutlassInt8ScaledMM", {}),
            ("w8a8", 1.4, "QuantlineInt8", {"kernels": "auto"}),
        ):
            latencies = [batch / speedup * part for part in STEADY]
            name = f"batch_{batch}"
            cells.append(Cell(checkpoint, latencies, name, batch, kernel=kernel, options=options))
    (group,) = comparison_groups(runs(*cells))
    rank_all([group], 0.1)
    assert kernel_findings(group) == [
        "w8a8 runs faster on QuantlineInt8 than on CutlassInt8ScaledMM (128 tokens in, 64 out)"
    ]
    labels = {entry.candidate for workload in group.workloads for entry in workload.entries}
    assert labels == {"original (kernels=auto)", "w8a8 (kernels=auto)", "w8a8"}


def test_two_choices_of_our_kernels_are_two_curves() -> None:
    cells = [
        Cell("w8a8", [batch / speedup * part for part in STEADY], f"batch_{batch}", batch,
             kernel="QuantlineInt8", options={"kernels": kernels})
        for batch in BATCHES
        for speedup, kernels in ((1.4, "auto"), (1.1, ["one_token"]))
    ]  # fmt: skip
    (group,) = comparison_groups(runs(*cells))
    rank_all([group], 0.1)
    assert {record.kernel for record in kernel_records(group)} == {
        "QuantlineInt8",
        "QuantlineInt8 (kernels=[one_token])",
    }
