"""The columns of the table of percentiles."""

from evaluate.report.show.served_loads.records import PercentileRecord
from evaluate.report.show.tables import CHECKPOINT, SCENARIO, Column, number

NAME = "percentiles"
TITLE = "Percentiles of served requests"
EXPLANATION = (
    "Of loads whose requests arrive over time: the time to the first token and to the last one, "
    "over the requests of all valid runs. TPOT is the median over the runs. Of a capacity search "
    "these are the trials at the rate that it found; where they have no p90, rows hold no times of "
    "requests, and the other figures are medians over the trials."
)
PERCENTILE: tuple[Column[PercentileRecord], ...] = (
    Column(SCENARIO.title, SCENARIO.key, lambda r: r.title, is_text=True),
    CHECKPOINT,
    Column("requests", "requests", lambda r: f"{r.requests:,}"),
    Column("TTFT p50 (ms)", "ttft_p50_ms", lambda r: number(r.ttft_p50_ms)),
    Column("p90", "ttft_p90_ms", lambda r: number(r.ttft_p90_ms)),
    Column("p99", "ttft_p99_ms", lambda r: number(r.ttft_p99_ms)),
    Column("TPOT p50 (ms)", "tpot_p50_ms", lambda r: number(r.tpot_p50_ms)),
    Column("p99", "tpot_p99_ms", lambda r: number(r.tpot_p99_ms)),
    Column("latency p50 (s)", "latency_p50_s", lambda r: number(r.latency_p50_s)),
    Column("p90", "latency_p90_s", lambda r: number(r.latency_p90_s)),
    Column("p99", "latency_p99_s", lambda r: number(r.latency_p99_s)),
)
