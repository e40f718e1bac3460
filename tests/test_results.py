"""What is published of measured results is what the rows say, by today's code."""

import re
from pathlib import Path

import pytest

from conf.compose import compose
from conf.schema.kernels import AUTOMATIC, KERNELS_OPTION, ON_REQUEST
from conf.schema.load import EngineOptions, GpuConfig
from conf.schema.report import ReportConfig
from evaluate.report.command import COMMAND
from evaluate.report.contents import Report, make_report
from evaluate.report.decide.capacity import capacities
from evaluate.report.decide.memory import need_gib
from evaluate.report.machine.answering import print_answer
from evaluate.report.show.charts.draw_process import draw
from evaluate.report.show.charts.plots import draw_request
from evaluate.report.show.markdown import write_markdown
from evaluate.report.show.page import write_page
from evaluate.report.show.records import speedup_of
from evaluate.report.show.served_rates.records import rate_records
from evaluate.report.show.tables import speedup
from evaluate.results.results_file import read
from evaluate.results.row_values import QuickAccuracy
from evaluate.results.rows import QuickAccuracyRow, SpeedRow, TaskAccuracyRow
from evaluate.results.significance import Sample, Start, compare
from evaluate.tune.comparing import gain_of
from evaluate.tune.engines import trial_of
from evaluate.tune.settings import Need
from evaluate.tune.space import DEFAULT, Assignment, Situation, space_of, text_of
from evaluate.tune.trials import SEARCH, TrialRequest
from tests.conftest import ROOT
from tests.published import OURS, OVER_BF16, README, RESULTS, short, tables

FOLDER = "results/h200-qwen3-8b"
ACCURACY = ROOT / "docs" / "accuracy.md"
KERNELS = "results/h200-qwen3-8b-kernels/results.jsonl.gz"
CODER = "results/h200-qwen2.5-coder-1.5b/results.jsonl.gz"
CODER_VPTQ = "results/h200-qwen2.5-coder-1.5b/questions-vptq.jsonl.gz"
CODER_SPEED = "results/h200-qwen2.5-coder-1.5b/speed.jsonl.gz"
CODER_W4AFP8 = "results/h200-qwen2.5-coder-1.5b/w4afp8.jsonl.gz"
CODER_VLLM = "results/h200-qwen2.5-coder-1.5b/vllm-kernels.jsonl.gz"
CODER_MORE = "results/h200-qwen2.5-coder-1.5b/more-recipes.jsonl.gz"
HALF_CODEBOOKS = "results/h200-qwen2.5-coder-0.5b/codebooks.jsonl.gz"
CODER_GPTQ = "results/h200-qwen2.5-coder-1.5b/three-bits.jsonl.gz"
CAPACITY = "results/h200-qwen3-8b-traffic/capacity.jsonl.gz"
TUNED = "results/h200-qwen3-8b-traffic/tuned-all.jsonl.gz"
EXPERTS = "results/h200-qwen3-30b-a3b/results.jsonl.gz"
MIXTURE = "Qwen3-30B-A3B"


@pytest.fixture(scope="module")
def report() -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return make_report(ReportConfig(results=[f"{FOLDER}/results.jsonl.gz"], out=FOLDER))


def test_the_published_report_is_what_the_rows_say(report: Report, tmp_path: Path) -> None:
    write_markdown(report, tmp_path)
    published = ROOT / FOLDER / "report.md"
    assert (tmp_path / "report.md").read_text() == published.read_text(), (
        f"python -m evaluate.report 'results=[{FOLDER}/results.jsonl.gz]' out={FOLDER}"
    )


def test_the_page_of_published_results_is_small(report: Report, tmp_path: Path) -> None:
    assert draw(draw_request(report, tmp_path)) == {}
    write_page(report, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 1.5e6


def test_every_speed_up_in_a_table_is_what_the_rows_say(report: Report) -> None:
    """Columns are named by recipes, lines by a workload or by its tokens in."""
    workloads = {workload.name: workload for workload in report.groups[0].workloads}
    checked = 0
    for header, *lines in tables(RESULTS):
        names = enumerate(cell.strip("`") for cell in header)
        recipes = {place: name for place, name in names if name in report.names.candidates}
        if header[0].startswith((OURS, OVER_BF16, MIXTURE)):
            continue
        for line in lines if recipes else []:
            named = re.search(r"`(\w+)`", line[0])
            workload = workloads[named[1] if named else f"context_{line[0].replace(',', '')}"]
            for place, recipe in recipes.items():
                entry = workload.of(recipe)
                assert entry is not None
                assert entry.ratio is not None
                assert line[place] == speedup(speedup_of(entry))
                checked += 1
    assert checked == 45


def test_the_readmes_speed_ups_are_what_the_rows_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """With our kernels, and in brackets with vLLM's own, where they were measured."""
    monkeypatch.chdir(ROOT)
    (group,) = make_report(ReportConfig(results=[KERNELS])).groups
    workloads = {workload.name: workload for workload in group.workloads}
    ((_, *names), *lines) = next(t for t in tables(README) if t[0][0] == "scenario")
    for line in lines:
        (workload,) = re.findall(r"`(\w+)`", line[0])
        for name, cell in zip((name.strip("`") for name in names), line[1:], strict=True):
            ours, vllms = (
                workloads[workload].of(name + after) for after in (" (kernels=auto)", "")
            )
            assert ours is not None
            own = f" ({short(speedup(speedup_of(vllms)))})" if vllms is not None else ""
            assert cell == short(speedup(speedup_of(ours))) + own
    assert (len(names), len(lines)) == (5, 4)


def test_the_answers_of_a_real_model_are_what_the_rows_say() -> None:
    """Score, interval of the difference in points, and verdict."""
    (first, faults), (second, _) = read(ROOT / CODER), read(ROOT / CODER_VPTQ)
    assert not faults
    rows = {
        (row.checkpoint, row.measure): row.values
        for row in [*second, *first]
        if isinstance(row, TaskAccuracyRow)
    }
    ((_, *titles), *lines) = next(t for t in tables(RESULTS) if t[0][0] == "questions")
    tasks = [title.partition(",")[0].lower() for title in titles]
    for line in lines:
        for title, task, cell in zip(titles, tasks, line[1:], strict=True):
            values = rows[line[0].strip("`"), f"questions:{task}"]
            assert title.endswith(f", {values.questions:,}")
            score = f"{values.score:.1%}".replace("%", " %")
            if values.difference_low is None or values.difference_high is None:
                assert cell == score
                continue
            low, high = values.difference_low * 100, values.difference_high * 100
            assert cell == f"{score} ({low:+.1f} to {high:+.1f}), {values.verdict}"
    assert (len(lines), len(rows)) == (9, 9 * 3)


def test_the_speed_of_a_mixture_of_experts_is_what_the_rows_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    (group,) = make_report(ReportConfig(results=[EXPERTS])).groups
    workloads = {workload.name: workload for workload in group.workloads}
    ((_, _, *names), *lines) = next(t for t in tables(RESULTS) if t[0][0] == MIXTURE)
    assert [line[0].strip("`") for line in lines] == list(workloads)
    for scenario, tokens, *cells in lines:
        workload = workloads[scenario.strip("`")]
        original = workload.of("original")
        assert original is not None
        assert tokens == f"{original.median('generated_tokens_per_s'):,.0f}"
        for name, cell in zip(names, cells, strict=True):
            entry = workload.of(name.strip("`"))
            assert entry is not None
            assert cell == speedup(speedup_of(entry))


def test_the_speed_of_a_real_model_is_what_the_rows_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quality, speed-ups, memory and energy."""
    monkeypatch.chdir(ROOT)
    (group,) = make_report(ReportConfig(results=[CODER, CODER_SPEED, CODER_W4AFP8])).groups
    workloads = {workload.name: workload for workload in group.workloads}
    quality = quick_values(CODER_W4AFP8) | quick_values(CODER_SPEED)
    found = next(t for t in tables(RESULTS) if t[0][:2] == ["recipe", "quality left"])
    ((_, _, *scenarios, _, _), *lines) = found
    for name, left, *speeds, memory, energy in lines:
        recipe = name.strip("`")
        judged = quality[recipe]
        assert left == ("" if recipe == "original" else f"{kept(judged)}, {judged.verdict}")
        for scenario, cell in zip(scenarios, speeds, strict=True):
            entry = workloads[scenario.strip("`")].of(recipe)
            assert entry is not None
            assert cell == ("1" if recipe == "original" else speedup(speedup_of(entry)))
        one, many = (
            workloads[scenario].of(recipe) for scenario in ("interactive", "high_concurrency")
        )
        assert one is not None
        assert many is not None
        assert memory == f"{need_gib(one):.1f}"
        assert energy == f"{many.median('joules_per_output_token'):.3f}"
    assert len(lines) == 9


def quick_values(path: str) -> dict[str, QuickAccuracy]:
    """What `accuracy=quick` found, by checkpoint."""
    rows, _ = read(ROOT / path)
    return {row.checkpoint: row.values for row in rows if isinstance(row, QuickAccuracyRow)}


def kept(values: QuickAccuracy) -> str:
    """The quality that is left, with its interval."""
    return f"{values.recovery:.3f} ({values.recovery_low:.3f} to {values.recovery_high:.3f})"


def test_the_quality_on_our_kernels_and_vllms_is_what_the_rows_say() -> None:
    ours = quick_values(CODER_W4AFP8) | quick_values(CODER_SPEED)
    vllms = quick_values(CODER_VLLM)
    (_, *lines) = next(t for t in tables(RESULTS) if t[0][0].startswith("quality left"))
    assert {line[0].strip("`") for line in lines} == vllms.keys() - {"original"}
    for name, *cells in lines:
        judged = [values[name.strip("`")] for values in (ours, vllms)]
        agreed = [f"{values.agreed_tokens_mean:.1f}" for values in judged]
        assert cells == [*map(kept, judged), *agreed]


def test_the_quality_by_size_is_what_the_rows_say() -> None:
    """Of those that were judged on a GPU; others were not published as rows."""
    large = quick_values(CODER_MORE) | quick_values(CODER_W4AFP8) | quick_values(CODER_SPEED)
    by_size = {"0.5B": quick_values(HALF_CODEBOOKS), "1.5B": large}
    (_, *sizes), *lines = next(t for t in tables(ACCURACY) if t[0][1:] == ["135M", "0.5B", "1.5B"])
    printed = {name.strip("`"): dict(zip(sizes, cells, strict=True)) for name, *cells in lines}
    for size, judged in by_size.items():
        cells = {name: printed[name][size] for name in judged if name != "original"}
        assert cells == {name: kept(judged[name]) for name in cells}
    assert len(by_size["1.5B"]) == 1 + 9 + 8


def test_the_quality_of_three_bits_is_what_the_rows_say() -> None:
    judged = quick_values(CODER_SPEED) | quick_values(CODER_GPTQ)
    found = [t for t in tables(RESULTS) if t[0] == ["recipe", "recovery", "judged on"]]
    recoveries = {line[0]: line[1] for line in found[0][1:]}
    assert recoveries["`vptq_3bit`"] == kept(judged["vptq_3bit"])
    assert recoveries["`w4a16_gptq`, groups of 128"] == kept(judged["w4a16_gptq"])
    assert recoveries["GPTQ with 3 bits, groups of 64"] == kept(judged["gptq_3bit"])


def test_what_a_real_model_is_served_in_is_what_the_report_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (_, *lines) = next(t for t in tables(RESULTS) if t[0] == ["asked for", "serve"])
    for asked, served in lines:
        options = [] if asked == "nothing" else asked.strip("`").split()
        results = f"results=[{CODER},{CODER_SPEED},{CODER_VPTQ}]"
        print_answer(compose(COMMAND, [results, *options]))
        assert f"  serve:   {served.strip('`')}\n" in capsys.readouterr().out
    assert len(lines) == 4


def test_what_one_card_holds_is_what_the_rows_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (group,) = make_report(ReportConfig(results=[CAPACITY])).groups
    found = rate_records(group, capacities(group, GpuConfig(price_per_hour=3.5)))
    records = {record.candidate: record for record in found}
    (_, *lines) = next(t for t in tables(RESULTS) if t[0][1] == "requests/s")
    for name, *cells in lines:
        record = records.pop({"bf16": "original"}.get(name, name.strip("`")))
        rate, users = record.requests_s, record.users
        assert users is not None
        assert cells == [
            f"{rate.median:.1f} ({rate.low:.1f} to {rate.high:.1f})",
            "" if record.speedup.ratio is None else speedup(record.speedup),
            f"{users.median:.0f}",
            f"{record.output_tok_s:,.0f}",
            f"{record.user_tok_s:.0f}",
            f"{record.ttft_p99_ms:.0f} ms",
            f"{record.tpot_p99_ms:.1f} ms",
            f"{record.joules_output:,.0f}",
            f"{record.cost_output:.3f}",
        ]
    assert records == {}


@pytest.mark.parametrize(("scenario", "lines"), [("decode_bound", 6), ("high_concurrency", 13)])
def test_what_tuning_gains_is_what_the_rows_say(scenario: str, lines: int) -> None:
    rows, faults = read(ROOT / TUNED)
    assert not faults
    space = space_of(None, Situation(frozenset(Need)), judges=True)
    runs: dict[Assignment, list[SpeedRow]] = {}
    for row in rows:
        if isinstance(row, SpeedRow) and row.measure == scenario:
            assignment = space.assignment_of(with_todays_auto(row.environment.engine_options))
            runs.setdefault(assignment, []).append(row)

    def trial(assignment: Assignment, number: int = SEARCH) -> Start:
        start = trial_of(TrialRequest(assignment, number), runs[assignment]).start
        assert start is not None
        return start

    (_, *table) = next(t for t in tables(RESULTS) if t[0][0] == f"`{scenario}`" and len(t[0]) == 2)
    by_text = {text_of(assignment): assignment for assignment in runs}
    for label, cell in table:
        name, _, rest = label.strip("`").partition("`")
        assignment = by_text[name]
        if "fresh starts" in rest:
            fresh = [[trial(one, number) for number in (1, 2)] for one in (assignment, DEFAULT)]
            gain = gain_of(*fresh)
            assert gain is not None
            assert cell == f"**{gain.ratio:.3f} ({gain.low:.3f} to {gain.high:.3f})**"
        else:
            samples = [Sample((Start(trial(one).logs),)) for one in (assignment, DEFAULT)]
            ratio = compare(*samples)
            assert ratio is not None
            assert cell == f"{ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    assert len(table) == lines
    assert {label.strip("`").partition("`")[0] for label, _ in table} == by_text.keys() - {
        text_of(DEFAULT)
    }


def with_todays_auto(options: EngineOptions) -> EngineOptions:
    """A search tries what auto stands for, and one family more; auto stood for fewer then."""
    kernels = options.get(KERNELS_OPTION)
    if not isinstance(kernels, list):
        return options
    return options | {KERNELS_OPTION: [*AUTOMATIC, *(one for one in ON_REQUEST if one in kernels)]}
