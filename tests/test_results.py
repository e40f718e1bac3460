"""What is published of measured results is what the rows say, by today's code."""

import re
from pathlib import Path

import pytest

from conf.schema.report import ReportConfig
from evaluate.report.contents import Report, make_report
from evaluate.report.show.markdown import write_markdown
from evaluate.report.show.records import speedup_of
from evaluate.report.show.tables import speedup
from tests.conftest import ROOT

FOLDER = "results/h200-qwen3-8b"
SPEED_UPS = {ROOT / "README.md": 16, ROOT / "docs" / "results.md": 45}


@pytest.fixture(scope="module")
def report() -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return make_report(ReportConfig(results=[f"{FOLDER}/results.jsonl"], out=FOLDER))


def test_the_published_report_is_what_the_rows_say(report: Report, tmp_path: Path) -> None:
    write_markdown(report, tmp_path)
    published = ROOT / FOLDER / "report.md"
    assert (tmp_path / "report.md").read_text() == published.read_text(), (
        f"python -m evaluate.report 'results=[{FOLDER}/results.jsonl]' out={FOLDER}"
    )


def tables(path: Path) -> list[list[list[str]]]:
    """The cells of every table of a document, the header first."""
    blocks = re.findall(r"(?:^\|.*\n)+", path.read_text(), flags=re.MULTILINE)
    return [
        [
            [cell.strip() for cell in line.strip("|").split("|")]
            for place, line in enumerate(block.splitlines())
            if place != 1
        ]
        for block in blocks
    ]


@pytest.mark.parametrize("path", SPEED_UPS, ids=[path.name for path in SPEED_UPS])
def test_every_speed_up_in_a_table_is_what_the_rows_say(path: Path, report: Report) -> None:
    """Columns are named by recipes, lines by a workload or by its tokens in."""
    workloads = {workload.name: workload for workload in report.groups[0].workloads}
    checked = 0
    for header, *lines in tables(path):
        names = enumerate(cell.strip("`") for cell in header)
        recipes = {place: name for place, name in names if name in report.names.candidates}
        for line in lines if recipes else []:
            named = re.search(r"`(\w+)`", line[0])
            workload = workloads[named[1] if named else f"context_{line[0].replace(',', '')}"]
            for place, recipe in recipes.items():
                entry = workload.of(recipe)
                assert entry is not None
                assert entry.ratio is not None
                whole = speedup(speedup_of(entry))
                short = re.sub(r" \(.*\)", "", whole)
                assert line[place] == (whole if "(" in line[place] else short)
                checked += 1
    assert checked == SPEED_UPS[path]
