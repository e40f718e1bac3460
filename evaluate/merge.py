"""`python -m evaluate.merge results=FILE`: adds what the jobs of a sweep left to its results."""

from pathlib import Path

from conf.app import run
from conf.compose import Command
from conf.errors import bad_input
from conf.launch.records import read_record
from conf.schema.report import MergeConfig
from conf.terminal import listed, say

COMMAND = Command(
    "merge",
    MergeConfig,
    (
        "python -m evaluate.merge",
        "python -m evaluate.merge results=sweep.jsonl",
        "python -m evaluate.merge results=/shared/team/results.jsonl",
    ),
    module="evaluate.merge",
)


def main(config: MergeConfig) -> None:
    """Merges the shards, and says which jobs have not ended."""
    from evaluate.results.lock import only_writer
    from evaluate.sweep.shards import merge, sweep_folder

    results = Path(config.results)
    folder = sweep_folder(results)
    if not folder.is_dir():
        raise bad_input(f"results={results}: there is no sweep of it (no folder {folder})")
    with only_writer(results):
        merged = merge(results)
    say(f"{results}: {merged.rows} rows were added from {merged.shards} shards")
    for fault in merged.ignored:
        say(f"{fault}; the line is ignored")
    records = {path.stem: read_record(path) for path in sorted(folder.glob("*.json"))}
    not_done = [name for name, record in records.items() if record and record.state != "done"]
    if not_done:
        say(f"not done: {listed(not_done)}; the command of the sweep continues them")


if __name__ == "__main__":
    run(COMMAND, main)
