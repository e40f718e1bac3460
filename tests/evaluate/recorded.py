"""What evaluations on the test model recorded, and a load of a team's own."""

from pathlib import Path

from evaluate.results.results_file import read
from evaluate.results.rows import Row

BUSY = ("too late", "arrived at once")
OWN_LOAD = """# A team's own scenario file
clients: {concurrency: 2, requests: 4, input_tokens: 300, output_tokens: 32,
  ttft_ms: 6e5, tpot_ms: 6e5}
arrivals: {rate: 20, requests: 4, input_tokens: 300, output_tokens: 32, ttft_ms: 6e5, tpot_ms: 6e5}
"""


def rows(path: Path) -> list[Row]:
    found, faults = read(path)
    assert faults == []
    return found


def faults(row: Row) -> list[str]:
    """Why a run is invalid, but for what a busy machine does to clients."""
    return [reason for reason in row.invalid if not any(word in reason for word in BUSY)]


def team_load(folder: Path) -> dict[str, str]:
    """Writes a team's folder with a scenario called ours; the environment that finds it."""
    (folder / "team" / "scenario").mkdir(parents=True)
    (folder / "team" / "scenario" / "ours.yaml").write_text(OWN_LOAD)
    return {"QUANTLINE_RECIPES": str(folder / "team")}
