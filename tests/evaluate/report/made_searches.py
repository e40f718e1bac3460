"""Rows of capacity searches that are made up."""

from datetime import UTC, datetime

from conf.schema.load import GpuConfig
from evaluate.report.decide.capacity import CapacityTable, capacities
from evaluate.report.decide.comparison import comparison_groups
from evaluate.results.capacity_search import Begin, Trial, next_rate
from evaluate.results.rows import TrialRow
from tests.evaluate.made_rows import row_with

RESOLUTION, INPUTS, OUTPUTS, COUNT = 0.05, 200, 100, 400

PRICES = GpuConfig(price_per_hour=3.6, energy_price_per_kwh=0.36, currency="EUR")


def trial_row(checkpoint: str, rate: float, meets: bool, repeat: int, gpus: int = 1) -> TrialRow:
    """A trial of 10 seconds with 500 J each second on a GPU, in which a request takes 2 seconds."""
    return row_with(
        TrialRow,
        checkpoint=checkpoint,
        measure="capacity",
        repeat=repeat,
        key=f"capacity {checkpoint}",
        values={
            "latency_s": 10.0,
            "request_latency_mean_s": 2.0,
            "tpot_median_s": 0.01 + rate / 1000,
            "ttft_p99_s": 0.3,
            "tpot_p99_s": 0.02,
            "input_tokens": float(COUNT * INPUTS),
            "output_tokens": float(COUNT * OUTPUTS),
            "steady_tokens_per_s": rate * OUTPUTS,
            "good_share": 0.995 if meets else 0.9,
            "cut_off_requests": 0.0 if meets else 100.0,
            "late_first_tokens": 1.0 if meets else 30.0,
            "late_further_tokens": 1.0 if meets else 10.0,
            "energy_j": 5000.0 * gpus,
            "prefix_hits": COUNT * INPUTS / 4,
            "server_cpu_share": 0.97,
        },
        requests={"input_tokens": {"200": COUNT}, "output_tokens": {"100": COUNT}},
        settings={
            "rate": rate,
            "requests": COUNT,
            "ttft_ms": 500,
            "tpot_ms": 20,
            "traffic": {"source": "sharegpt", "sha256": "ab", "arrivals": "poisson"},
            "capacity": {
                "share": 0.99, "resolution": RESOLUTION, "first_rate": 1.0, "seconds": 30.0,
                "least_requests": 200,
            },
        },
        environment={
            "device": "NVIDIA H200",
            "engine": "vllm_server",
            "versions": {"vllm": "0.25.1"},
            "engine_options": {"enable_prefix_caching": True, "tensor_parallel_size": gpus},
            "checkpoint_sha256": checkpoint,
        },
        time=datetime.fromtimestamp(repeat * 10**6 + rate * 1000, UTC).isoformat(),
    )  # fmt: skip


def searched(checkpoint: str, *limits: float, gpus: int = 1) -> list[TrialRow]:
    """Searches in a server that holds these rates, one in each repeat."""
    rows = []
    for repeat, limit in enumerate(limits):
        trials: list[Trial] = []
        while (rate := next_rate(trials, RESOLUTION, Begin(1.0, is_near=False))) is not None:
            trials.append(Trial(rate, rate <= limit))
            rows.append(trial_row(checkpoint, rate, rate <= limit, repeat, gpus))
    return rows


def table_of(rows: list[TrialRow]) -> CapacityTable:
    (group,) = comparison_groups(rows)
    (table,) = capacities(group, PRICES)
    return table


def on_card(card: str, rows: list[TrialRow]) -> list[TrialRow]:
    for row in rows:
        row.environment = row.environment.with_fields(card=card)
    return rows


PACED = 100.0
"""Milliseconds by which TTFT grows with each request a second, in `paced`."""


def paced(rows: list[TrialRow], slope: float = PACED) -> list[TrialRow]:
    """The same trials with their slowest requests. A trial that missed the targets was cut off when
    too many first tokens came too late."""
    for row in rows:
        ttft = row.settings.rate * slope / 1e3
        late = ttft if row.trial.meets else 30.0
        row.requests = row.requests.with_fields(slowest_s=[(late, 0.01)] * 5)
    return rows
