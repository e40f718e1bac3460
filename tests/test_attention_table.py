"""The table of attention in docs/results.md, against the plan that an H200 measured."""

import gzip
import json
import re

from pydantic import TypeAdapter

from serve.kernels.attention.planning import OURS, OWN
from serve.kernels.plans.store import PlanFile
from tests.conftest import ROOT
from tests.published import RESULTS, tables

PLANS = ROOT / "results" / "h200-qwen3-8b-kernels" / "plans-attention.json.gz"
CELL = re.compile(r"([\d.]+) \(([\d.]+), ([\d.]+)\)")


def measured() -> dict[tuple[int, int], tuple[str, str, str]]:
    """Ours, vLLM's and the ratio by requests and context, as the table prints them."""
    file = TypeAdapter(PlanFile).validate_python(json.loads(gzip.decompress(PLANS.read_bytes())))
    cells = {}
    for stored in file.plans:
        plan = stored.plan
        times = {(one.tokens, one.product, one.options): one.microseconds for one in plan.timings}
        for (requests, product, options), microseconds in times.items():
            if product == OURS and options == plan.step(requests).options:
                own = times[requests, OWN, ()]
                ratio = f"{own / microseconds:.2f}"
                place = requests, stored.columns
                cells[place] = f"{microseconds:.1f}", f"{own:.1f}", ratio
    return cells


def test_the_table_has_the_times_of_the_plan() -> None:
    (_, *header), *rows = next(table for table in tables(RESULTS) if table[0][0] == "requests")
    contexts = [int(cell.replace(",", "")) for cell in header]
    printed = {}
    for requests, *cells in rows:
        for context, cell in zip(contexts, cells, strict=True):
            if found := CELL.fullmatch(cell):
                printed[int(requests), context] = found.groups()
    assert printed == measured()
    ratios = [float(ratio) for _, _, ratio in printed.values()]
    log = (ROOT / "CHANGELOG.md").read_text()
    assert f"take {min(ratios):.2f} to {max(ratios):.2f} times as long" in log
