"""Lines that are no rows: each is named by file and line, costs nothing but itself, and nothing
that reads results dies of what is left."""

import copy
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from conf.schema.report import CompareConfig, ReportConfig, TargetsConfig
from evaluate.compare import command as compare
from evaluate.report import contents
from evaluate.report.answer import recommend
from evaluate.report.programs import ServeRequest
from evaluate.report.show.markdown import write_markdown
from evaluate.results.recorder import Recorder
from evaluate.results.results_file import append, misfit, read, row_of
from evaluate.results.row_types import Environment
from evaluate.results.rows import QuickAccuracyRow, SpeedRow, line_content
from tests.conftest import ROOT, Run, evaluate_config
from tests.evaluate.results.rows_of_each_kind import all_kinds, quick_row

RESULTS = sorted((ROOT / "results").glob("**/*.jsonl"))
MUTATIONS = 60
Content = dict[str, Any]
Place = tuple[Any, ...]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_recorded_row_is_a_row(path: Path) -> None:
    rows, faults = read(path)
    assert rows
    assert faults == []


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_row_is_written_as_it_was_read(path: Path) -> None:
    """To the digit, and in the order of its fields; also rows of before a field was added."""
    for line in path.read_text().splitlines():
        content = json.loads(line)
        again = line_content(row_of(content))
        assert json.dumps({name: again[name] for name in content}) == json.dumps(content)


def test_fields_of_newer_files_are_kept() -> None:
    content = speed()
    for part in ("values", "memory", "startup"):
        content[part]["newer"] = 7
    for part in ("settings", "limit", "environment", "requests"):
        content[part]["newer"] = {"any": ["value", None]}
    again = line_content(row_of(content))
    assert {name: again[name] for name in content} == content


def test_a_row_of_every_kind_is_a_row() -> None:
    assert [wrong for row in all_kinds() if (wrong := misfit(row))] == []


def speed() -> Content:
    return copy.deepcopy(next(row for row in all_kinds() if row["measure"] == "interactive"))


def of(measure: str) -> Content:
    return copy.deepcopy(next(row for row in all_kinds() if row["measure"] == measure))


def put(row: Content, place: str, value: Any) -> Content:
    *parents, last = place.split(".")
    part = row
    for name in parents:
        part = part[name]
    part[last] = value
    return row


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("values.latency_s", -0.5, "values.latency_s is -0.5: should be greater than"),
        ("values.latency_s", 0, "values.latency_s is 0: should be greater than"),
        ("values.latency_s", 1e30, "values.latency_s is 1e+30: should be less than"),
        ("values.latency_s", True, "values.latency_s is True: should be a valid number"),
        ("values.latency_s", None, "values.latency_s is None: should be a valid number"),
        ("values.latency_s", 0.01, "values.ttft_last_s is"),
        ("values.ttft_last_s", 99.0, "values.ttft_last_s is 99, above values.latency_s"),
        ("values.tpot_median_s", 1e-5, "values.tpot_median_s is 1e-05"),
        ("values.generated_tokens_per_s", 1e6, "values.generated_tokens_per_s is 1e+06"),
        ("values.output_tokens", 63.5, "values.output_tokens is 63.5: should be a whole number"),
        ("values.output_tokens", 640.0, "values.output_tokens is 640"),
        ("values.failed_requests", 1.0, "answered and failed requests is 2"),
        ("values.prefix_hits", 100.0, "values.prefix_hits is 100 of 128, and the run is not"),
        ("values.overlap_share", 1.5, "values.overlap_share is 1.5: should be less than"),
        ("values", "fast", "values is 'fast': should be a valid dictionary"),
        ("values", {"latency_s": [1.0]}, "values.latency_s is [1.0]: should be a valid number"),
        ("settings.batch", 8, "answered and failed requests is 1, settings say 8"),
        ("settings.output_tokens", 32, "requests.output_tokens is 64, but settings"),
        ("environment", [], "environment is []: should be a valid dictionary"),
        ("environment.versions", {"vllm": 1}, "environment.versions.vllm is 1: should be a valid"),
        ("environment.engine_options", {"tensor_parallel_size": "two"}, "tensor_parallel_size"),
        ("environment.weights", "made of air", "should be 'random' or 'trained'"),
        ("limit", None, "limit is None: should be a valid dictionary"),
        ("limit.prefill_share", 0.001, "limit.prefill_share is 0.001, its parts say"),
        ("kernels", {"\x1b[31m": 7}, "kernels.\\x1b[31m is '\\x1b[31m': should have no control"),
        ("kernels", {"scheme": 7}, "kernels.scheme is 7: should be a valid string"),
        ("memory.weights_gib", -1.0, "memory.weights_gib is -1.0: should be greater than"),
        ("memory.kv_cache_requests", 1.0, "memory.kv_cache_requests is 1, its parts say"),
        ("repeat", 1.5, "repeat is 1.5: should be a valid integer"),
        ("generation", -1, "generation is -1: should be greater than"),
        ("checkpoint", "w8\x1b[31m", "should have no control characters"),
        ("checkpoint", "w8\u202e", "should have no control characters"),
        ("checkpoint", "w8\ud800", "holds half a character (a lone surrogate)"),
        ("time", "yesterday", "time is 'yesterday': should be a time as"),
        ("invalid", [1], "invalid.0 is 1: should be a valid string"),
        ("schema", 2.0, "schema 2.0, this version reads 2"),
    ],
)
def test_what_cannot_be_is_named(place: str, value: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(f"{json.dumps(speed())}\n{json.dumps(put(speed(), place, value))}\n")
    rows, faults = read(path)
    assert len(rows) == 1
    (fault,) = faults
    assert fault.startswith(f"{path}:2: ")
    assert words in fault
    assert fault.isascii()


@pytest.mark.parametrize(
    ("measure", "place", "value", "words"),
    [
        ("quick", "values.recovery", 0.1, "values.recovery is 0.1, outside its interval"),
        ("quick", "values.verdict", "fine", "should be 'no loss seen', 'small loss', 'loss' or"),
        ("quick", "values.perplexity", 0.5, "values.perplexity is 0.5: should be greater than"),
        ("quick", "values.worst", [{}], "the field values.worst.0.divergence is missing"),
        ("quick", "values", {"latency_s": 1.0}, "values has none of perplexity, score"),
        ("lm_eval:arc_easy", "values.score", 0.9, "values.score is 0.9, outside its interval"),
        ("lm_eval:arc_easy", "values.lost", 500, "values.lost and gained is"),
        ("sensitivity", "values.blocks", [{"block": "a"}], "values.blocks.0.divergence is missing"),
        ("sensitivity", "values", {}, "the field values.blocks is missing"),
    ],
)
def test_judgements_are_checked_as_well(measure: str, place: str, value: Any, words: str) -> None:
    assert words in misfit(put(of(measure), place, value))


@pytest.mark.parametrize("name", ["block_losses", "block_divergences"])
def test_blocks_that_contradict_their_mean_are_named(name: str) -> None:
    row = of("quick")
    row["values"][name] = [value + 0.5 for value in row["values"][name]]
    assert "values.recovery is" in misfit(row) or "values.divergence_mean is" in misfit(row)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_losses": [-1000.0] * 8}, "the mean of values.block_losses is -1000, below"),
        ({"block_losses": [1e308] * 8}, "values.block_losses.0 is 1e+308: should be less than"),
        ({"block_losses": [10**25] * 8}, "values.block_losses.0 is 1"),
        ({"block_divergences": [0.1] * 3}, "is 8, that of values.block_divergences 3"),
        ({"block_divergences": []}, "is 8, that of values.block_divergences 0"),
        ({"block_losses": []}, "is 0, that of values.block_divergences 8"),
        ({"block_losses": [700.0] * 8}, "blocks say a recovery of 9.8"),
        ({"block_losses": [-700.0] * 8}, "the mean of values.block_losses is -700, below"),
    ],
)
def test_blocks_that_no_comparison_can_use_are_named(changes: Any, words: str) -> None:
    row = of("quick")
    assert len(row["values"]["block_losses"]) == 8
    names = ("recovery", "recovery_low", "recovery_high", "perplexity", "original_perplexity")
    kept = {name: value for name, value in row["values"].items() if name not in names}
    del kept["divergence_mean"]
    for values in (row["values"], kept):
        assert words in misfit(row | {"values": values | changes}) or values is row["values"]
        assert misfit(row | {"values": values | changes})


def test_blocks_of_a_broken_checkpoint_may_have_lost_everything() -> None:
    row = of("quick")
    names = ("recovery", "recovery_low", "recovery_high", "perplexity", "original_perplexity")
    values = {name: value for name, value in row["values"].items() if name not in names}
    row["values"] = values | {"verdict": "broken", "block_losses": [5000.0] * 8}
    assert not misfit(row)


def test_a_judgement_that_contradicts_its_verdict_is_named() -> None:
    row = of("quick")
    for name in ("recovery", "recovery_low", "recovery_high"):
        row["values"][name] = 0.1
    for name in ("original_perplexity", "block_losses", "block_divergences"):
        del row["values"][name]
    assert "with a recovery of 0.1" in misfit(row)


def test_a_profile_without_a_window_is_none() -> None:
    row = copy.deepcopy(next(row for row in all_kinds() if row["kind"] == "profile"))
    row["values"]["window_s"] = 0
    assert misfit(row).startswith("values.window_s is 0: should be greater than")


@pytest.mark.parametrize("name", ["settings", "environment", "invalid"])
def test_a_run_without_what_it_counts_by_is_none(name: str) -> None:
    row = speed()
    del row[name]
    assert misfit(row) == f"the field {name} is missing"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"schema": NaN}', "holds NaN"),
        (b'{"schema": -Infinity}', "holds -Infinity"),
        (b'{"schema": 1e400}', "schema is not a number that can be stored"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "is not a number"),
        (b'{"schema": ' + b"9" * 5000 + b".0}", "is not a number"),
        (b'{"schema": 2, "schema": 2}', "the key 'schema' appears twice"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
        (b"[" * 20 + b"]" * 20, "nested deeper than 16 levels"),
        (b'{"schema": "\\ud800"}', "half a character"),
        (b"\xff\xfe\x00", "no UTF-8 (byte 1)"),
        (b"\x00" * 50, "no JSON"),
        (b"[]", "schema None"),
        (b"7", "schema None"),
    ],
)
def test_a_line_that_is_no_row_costs_itself_only(line: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    good = json.dumps(speed()).encode()
    path.write_bytes(good + b"\n" + line + b"\r\n\r\n" + good + b"\r\n")
    rows, faults = read(path)
    assert len(rows) == 2
    (fault,) = faults
    assert fault.startswith(f"{path}:2: ")
    assert words in fault


def test_a_mark_at_the_beginning_of_the_file_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(speed()).encode() + b"\r\n")
    assert len(read(path)[0]) == 1


def test_a_file_of_another_make_is_refused_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(speed()) + "\n", encoding="utf-16")
    with pytest.raises(QuantlineError, match="is UTF-16; save it as UTF-8"):
        read(path)
    path.write_bytes(random.Random(0).randbytes(2**20))
    with pytest.raises(QuantlineError, match="is no file of results") as caught:
        read(path)
    assert caught.value.exit_code == 2


def test_names_that_are_no_text_are_written_so_that_they_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    row = quick_row()
    row.environment = row.environment.with_fields(
        command="python \udcff", variables={"A": "\udcff"}
    )
    append(path, row)
    rows, faults = read(path)
    assert faults == []
    assert rows[0].environment.command == "python ?"


def places(value: Any, place: Place = ()) -> list[Place]:
    found = [place] if place else []
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(part, (*place, name))
    return found


STRANGE: list[Any] = [
    *(0, -1, -0.5, 1.5, 1e-12, 1e30, 1e308, 2**70, True, None, "", "1", "x" * 3000),
    *("\ud800", "\x00", "\x1b[31m", "é", [], {}, [1], {"a": 1}, [[[]]], [None], "NaN"),
]
LITERALS = ["NaN", "1e400", "1" * 5000, '"\\ud800"', "[" * 2000, '{"a": 1, "a": 2}', "01", "\x00"]


def mutated(row: Content, chance: random.Random) -> bytes:
    row = copy.deepcopy(row)
    place = chance.choice(places(row))
    part: Any = row
    for name in place[:-1]:
        part = part[name]
    last, old = place[-1], part[place[-1]]
    how = chance.randrange(6)
    if how == 0:
        del part[last]
    elif how == 1 and isinstance(old, int | float):
        part[last] = old * chance.choice([-1, 0, 0.5, 2, 10, 1e6, 1e-6])
    elif how == 2:
        part[last] = chance.choice([str(old), [old], {"value": old}])
    elif how == 3:
        part[last] = "@"
        return json.dumps(row).replace('"@"', chance.choice(LITERALS), 1).encode()
    elif how == 4:
        line = bytearray(json.dumps(row).encode())
        line[chance.randrange(len(line))] = chance.choice([0, 34, 44, 48, 57, 93, 125, 200])
        return bytes(line)
    else:
        part[last] = chance.choice(STRANGE)
    return json.dumps(row).encode()


def refusal(reader: Callable[[], object]) -> QuantlineError | None:
    try:
        reader()
    except QuantlineError as error:
        return error
    return None


def test_nothing_that_reads_results_dies_of_a_damaged_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any damage is either named, or leaves a row that everything can read."""
    monkeypatch.setattr(contents, "charts", lambda *_: [])  # drawing takes a second each time
    chance = random.Random(17)
    rows = all_kinds()
    path, whole = tmp_path / "results.jsonl", tmp_path / "whole.jsonl"
    whole.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    targets = TargetsConfig(tpot_ms=20.0)
    request = ServeRequest(str(path), targets, {}, "qwen3-8b", "NVIDIA H200", "")
    readers: list[Callable[[], object]] = [
        lambda: write_markdown(contents.make_report(ReportConfig(results=[str(path)])), tmp_path),
        lambda: compare.main(CompareConfig(results=[str(path), str(whole)])),
        lambda: recommend(request),
    ]
    for _ in range(MUTATIONS):
        lines = [json.dumps(row).encode() for row in rows]
        number = chance.randrange(len(rows))
        lines[number] = mutated(rows[number], chance)
        path.write_bytes(b"\n".join(lines) + b"\n")
        refused = refusal(chance.choice(readers))
        if refused is not None:
            assert refused.exit_code == 2
            assert f"{path}:{number + 1}: " in str(refused), lines[number]


def test_a_run_of_minus_500_ms_is_ranked_nowhere(command_here: Run, tmp_path: Path) -> None:
    rows = [row for row in all_kinds() if row["kind"] == "speed"]
    bad = put(copy.deepcopy(rows[-1]), "values.latency_s", -0.5)
    path = tmp_path / "results.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, bad]))
    shutil.copy(path, tmp_path / "copy.jsonl")
    result = command_here("evaluate.compare", "results=[results.jsonl,copy.jsonl]")
    assert result.returncode == 2
    assert f"results.jsonl:{len(rows) + 1}: values.latency_s is -0.5" in result.stderr
    assert "interactive" in result.stdout
    assert "Traceback" not in result.stderr


def test_an_evaluation_that_goes_on_names_a_damaged_line_and_leaves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    lines = [json.dumps(speed()), json.dumps(put(speed(), "values.latency_s", 0)), '{"kind": "sp']
    path.write_text("\n".join(lines))  # a run that was killed left the last one
    recorder = Recorder(evaluate_config("model=tiny", f"results={path}"), Environment(device="cpu"))
    assert len(recorder.before) == 1
    said = capsys.readouterr().err
    assert f"{path}:2: values.latency_s is 0" in said
    assert f"{path}:3: no JSON" in said
    recorder.record(QuickAccuracyRow, "w8a8", "quick", "key", values=quick_row().values)
    assert path.read_text().splitlines()[:3] == lines
    assert [row.kind for row in read(path)[0]] == ["speed", "accuracy"]


def test_a_run_that_could_not_be_read_again_is_recorded_as_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    recorder = Recorder(evaluate_config("model=tiny", f"results={path}"), Environment(device="cpu"))
    for latency in (speed()["values"]["latency_s"], -1.0):
        content = put(speed(), "values.latency_s", latency)
        names = ("values", "requests", "settings", "invalid", "environment")
        fields = {name: content[name] for name in names}
        recorder.record(SpeedRow, "original", "interactive", "key", **fields)
    rows, faults = read(path)
    assert faults == []
    assert [row.kind for row in rows] == ["speed", "failed"]
    assert "the run cannot be recorded: values.latency_s is -1.0" in rows[1].reason
    assert [failure.exit_code for failure in recorder.failures] == [3]
