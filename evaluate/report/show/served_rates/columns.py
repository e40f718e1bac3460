"""The columns of the table of capacities."""

from evaluate.report.show.served_rates.records import RateRecord
from evaluate.report.show.tables import CHECKPOINT, SCENARIO, Column, number, percent, speedup
from evaluate.report.show.tables import with_interval as interval

TITLE = "How much traffic one GPU holds"
EXPLANATION = (
    "The highest rate at which enough requests met their targets, with a 95 % interval (of fewer "
    "than three searches, the range in which they ended), and what was measured at that rate. All "
    "figures are for one GPU. Users are requests in progress at once. Each cost carries all of the "
    "GPU's time and energy, input and output."
)


def cost_title(records: list[RateRecord]) -> str:
    currencies = list(dict.fromkeys(record.currency for record in records if record.currency))
    return ", ".join(currencies) or "cost"


def rate_columns(records: list[RateRecord]) -> tuple[Column[RateRecord], ...]:
    currency = cost_title(records)
    return (
        Column(SCENARIO.title, SCENARIO.key, lambda r: r.title, is_text=True),
        CHECKPOINT,
        Column(
            "requests/s",
            "requests_s",
            lambda r: interval(r.requests_s),
            "highest rate that meets the targets, for one GPU",
        ),
        Column(
            "times the original",
            "speedup",
            lambda r: speedup(r.speedup),
            "capacity over that of the original with the most similar options, 95 % interval; "
            "= means no significant difference",
            is_phrase=True,
        ),
        Column("users", "users", lambda r: interval(r.users), "requests in progress at once"),
        Column("output (tok/s)", "output_tok_s", lambda r: number(r.output_tok_s)),
        Column(
            "tok/s/user",
            "user_tok_s",
            lambda r: number(r.user_tok_s),
            "1 / median time per output token",
        ),
        Column("p99 TTFT (ms)", "ttft_p99_ms", lambda r: number(r.ttft_p99_ms)),
        Column("p99 TPOT (ms)", "tpot_p99_ms", lambda r: number(r.tpot_p99_ms)),
        Column(
            "limited by",
            "limited_by",
            lambda r: f"{r.limited_by} ({percent(r.limited_share)})" if r.limited_by else "",
            "just above this rate, what most late or failed requests missed, and their share: a "
            "target, or failures",
        ),
        Column(
            "API server",
            "server_share",
            lambda r: percent(r.server_share),
            "of one core over the whole trial, what the thread took that reads requests and "
            "writes tokens; from 85 % on it may be the limit, and not the GPU",
        ),
        Column(
            "cache hits",
            "hit_share",
            lambda r: percent(r.hit_share),
            "share of the prompts' tokens that came from the prefix cache",
        ),
        Column(f"{currency}/M in", "cost_input", lambda r: number(r.cost_input)),
        Column(f"{currency}/M out", "cost_output", lambda r: number(r.cost_output)),
        Column("J/M in", "joules_input", lambda r: number(r.joules_input)),
        Column("J/M out", "joules_output", lambda r: number(r.joules_output)),
        Column("searches", "searches", lambda r: str(r.searches)),
        Column("trials", "trials", lambda r: str(r.trials)),
    )
