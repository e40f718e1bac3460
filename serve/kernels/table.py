"""The stored plans as tables, one for each GPU and versions."""

from collections.abc import Iterator

from rich.table import Table

from conf.cache import LIMITS, cache_root
from conf.hardware import gpu_names
from conf.schema.kernels import PlansConfig
from conf.terminal import say, table_console
from serve.kernels.plans.limit import MEASURED, Rates, rates_of
from serve.kernels.plans.plan import Timing
from serve.kernels.plans.store import PlanFile, StoredPlan, stored_files

NARROWEST_TABLE = 120
NUMBERS = ("tokens", "µs", "of the limit")


def show_plans(config: PlansConfig) -> None:
    """Prints what is stored; says so where there is nothing."""
    files = stored_files()
    if not any(file.plans for file in files):
        here = "" if gpu_names() else "; this machine has no NVIDIA GPU"
        say(
            f"there are no plans in {cache_root() / LIMITS}{here}. An engine measures them when it "
            "loads a quantized checkpoint on a GPU with engine.kernels=auto"
        )
        return
    console = table_console(NARROWEST_TABLE)
    for file in files:
        rates = rates_of(file.identity.gpu)
        rows = [row for stored in file.plans for row in _rows(stored, config, rates)]
        if rows:
            console.print(_table(file, rates, rows))
        else:
            say(f"{file.identity.gpu}: no plan fits layers={config.layers} tokens={config.tokens}")


def _table(file: PlanFile, rates: Rates | None, rows: list[list[str]]) -> Table:
    identity = file.identity
    title = f"{identity.gpu}, torch {identity.torch}, vLLM {identity.vllm}"
    table = Table(title=f"{title}\n{limit_text(rates)}", title_justify="left")
    for name in ("layer", "tokens", "plan", "options", "µs", "of the limit", "others, µs"):
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    for row in rows:
        table.add_row(*row)
    return table


def limit_text(rates: Rates | None) -> str:
    """What the shares are of. A measured rate is lower than the datasheet's, so a share of it is
    larger: on an H200 by about a tenth."""
    if rates is None:
        return "no limit is known: neither measured rates nor the datasheet of this GPU"
    source = "measured on this machine" if rates.source == MEASURED else "by the GPU's datasheet"
    return f"limit: {rates.bandwidth / 1e9:,.0f} GB/s and dense products, {source}"


def _rows(stored: StoredPlan, config: PlansConfig, rates: Rates | None) -> Iterator[list[str]]:
    """One row for each measured number of tokens."""
    if config.layers and config.layers not in stored.key:
        return
    plan = stored.plan
    for tokens in sorted({timing.tokens for timing in plan.timings}):
        if config.tokens and tokens not in config.tokens:
            continue
        timings = [timing for timing in plan.timings if timing.tokens == tokens]
        best, step = best_of_each(timings), plan.step(tokens)
        fastest = best.pop(step.product, None)
        # A plan may choose options that are the fastest of several sizes together.
        used = next(
            (one for one in timings if (one.product, one.options) == (step.product, step.options)),
            fastest,
        )
        others = [f"{name} {timing.microseconds:.1f}" for name, timing in best.items()]
        if used is None:
            continue
        yield [
            stored.key,
            f"{tokens:,}",
            used.product,
            " ".join(f"{name}={value}" for name, value in used.options),
            f"{used.microseconds:.1f}",
            share_of_limit(stored, used, rates),
            ", ".join(others),
        ]


def best_of_each(timings: list[Timing]) -> dict[str, Timing]:
    """The fastest options of each product, the fastest product first."""
    best: dict[str, Timing] = {}
    for timing in sorted(timings, key=lambda timing: timing.microseconds):
        best.setdefault(timing.product, timing)
    return best


def share_of_limit(stored: StoredPlan, timing: Timing, rates: Rates | None) -> str:
    if rates is None:
        return ""
    least = rates.least_microseconds(
        timing.tokens, stored.rows, stored.columns, timing.weight_bytes, stored.numbers
    )
    return f"{least / timing.microseconds:.0%}"
