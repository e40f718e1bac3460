"""Whether a trial meets the latency targets that the user gave for traffic."""

import statistics
from collections.abc import Sequence

from conf.schema.report import TargetsConfig
from evaluate.results.rows import SpeedRow

MILLI = 1e3


def missed_targets(runs: Sequence[SpeedRow], targets: TargetsConfig) -> str:
    """The targets that these valid runs miss, for people; empty where they meet all of them. The
    99th percentile of a run counts, and of several runs the median."""
    limits = (("TTFT", "ttft_p99_s", targets.ttft_ms), ("TPOT", "tpot_p99_s", targets.tpot_ms))
    missed = []
    for name, value, limit in limits:
        if limit is None or not runs:
            continue
        figures = [figure for run in runs if (figure := run.values.figure(value)) is not None]
        if not figures:
            missed.append(f"{name} was not measured")
        elif (median := MILLI * statistics.median(figures)) > limit:
            missed.append(f"p99 {name} {median:.4g} ms is over {limit:g} ms")
    return ", ".join(missed)
