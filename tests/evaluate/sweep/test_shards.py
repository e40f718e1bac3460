"""Merging shards: once, twice, with what a crash leaves, and the command that does it."""

import os
from pathlib import Path

import pytest

from conf.launch.records import read_record, write_record
from conf.launch.task import Record
from evaluate.results.results_file import append
from evaluate.sweep.hooks import EvaluateSweep
from evaluate.sweep.shards import merge, row_identities, sweep_folder
from tests.conftest import Run, evaluate_config
from tests.evaluate.made_rows import speed_row


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results file with one row, and two shards: one holds that row, too."""
    path = tmp_path / "results.jsonl"
    folder = sweep_folder(path)
    append(path, speed_row(repeat=0))
    append(folder / "a.jsonl", speed_row(repeat=0))
    append(folder / "a.jsonl", speed_row(repeat=1))
    append(folder / "b.jsonl", speed_row(checkpoint="b"))
    return path


def test_what_is_merged_twice_gives_the_same_file(results: Path) -> None:
    before = results.read_bytes()
    merged = merge(results)
    assert (merged.rows, merged.shards, merged.ignored) == (2, 2, [])
    after = results.read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == 3
    assert merge(results).rows == 0
    assert results.read_bytes() == after


def test_a_half_written_line_is_left_out_until_it_is_measured_again(results: Path) -> None:
    shard = sweep_folder(results) / "b.jsonl"
    whole = shard.read_bytes()
    shard.write_bytes(whole + whole[:50])
    merged = merge(results)
    assert merged.rows == 2
    assert merged.ignored == [f"{shard}:2: is not finished"]
    append(shard, speed_row(checkpoint="b", repeat=1))  # the job goes on
    assert merge(results).rows == 1


def test_a_job_is_done_while_its_rows_are_in_the_results(results: Path) -> None:
    shard = sweep_folder(results) / "b.jsonl"
    config = evaluate_config("model=tiny", f"results={results}")
    record = Record("done", [], "host", 1, outputs=row_identities(shard))
    hooks = EvaluateSweep()
    assert not hooks.is_done(config, record)  # not merged yet
    merge(results)
    assert hooks.is_done(config, record)
    assert not hooks.is_done(config, Record("done", [], "host", 1))
    forced = evaluate_config("model=tiny", f"results={results}", "force=true")
    assert not hooks.is_done(forced, record)


def test_the_command_merges_and_names_jobs_that_have_not_ended(
    results: Path, command_here: Run
) -> None:
    write_record(sweep_folder(results) / "b.json", Record("running", [], "host", 1))
    result = command_here("evaluate.merge", f"results={results}")
    assert result.returncode == 0, result.stderr
    assert "2 rows were added from 2 shards" in result.stderr
    assert "not done: b; the command of the sweep continues them" in result.stderr
    result = command_here("evaluate.merge", "results=other.jsonl")
    assert result.returncode == 2
    assert "results=other.jsonl: there is no sweep of it" in result.stderr


def test_a_damaged_record_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"state": "do')
    assert read_record(tmp_path / "job.json") is None


def test_what_is_no_file_among_shards_stops_nothing(results: Path, command_here: Run) -> None:
    folder = sweep_folder(results)
    (folder / "folder.jsonl").mkdir()
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    os.mkfifo(folder / "pipe.jsonl")  # opening it would wait forever
    os.mkfifo(folder / "pipe.json")
    assert len([fault for fault in merge(results).ignored if "is no file" in fault]) == 3
    assert read_record(folder / "pipe.json") is None
    result = command_here("evaluate.merge", "results=.")
    assert result.returncode == 2, result.stderr
    assert "results=.: is a folder" in result.stderr
