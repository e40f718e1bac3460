"""The story of `evaluate.kernels`: measures what is missing, and writes the tables."""

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from conf.errors import environment_failure
from conf.hardware import cpu_name, gpu_names
from conf.schema.kernel_grid import KernelGridConfig
from conf.terminal import say
from evaluate.kernels.cases import KernelCase, cases
from evaluate.kernels.tables import summary, write_tables
from evaluate.measure.environment import command, commit, versions
from evaluate.measure.gpu_watch import GpuWatch
from evaluate.results.results_file import append, read
from evaluate.results.row_types import Environment
from evaluate.results.rows import KernelRow, Row, current
from serve.kernels.settings import VERSION

OF_KEY = {"device", "versions", "kernels_version"}


def measure_grid(config: KernelGridConfig) -> None:
    """Measures what the file does not hold yet, and writes the tables."""
    path = Path(config.results).expanduser()
    before, faults = read(path)
    for fault in faults:
        say(f"{fault}; the line is ignored")
    wanted, here = cases(config), environment()
    keys = {key_of(case, here): case for case in wanted}
    known = generations(before)
    missing = [case for key, case in keys.items() if config.force or key not in known]
    if missing and not gpu_names():
        raise environment_failure(
            f"grid={config.grid}: {len(missing)} of {len(wanted)} products are not in "
            f"{config.results}, and there is no NVIDIA GPU here to measure them"
        )
    rows = list(before)
    for row in _new_rows(config, missing, here, known):
        append(path, row)
        rows.append(row)
    ours = [r for r in current(rows) if isinstance(r, KernelRow) and r.key in keys]
    if ours:
        shown = write_tables(ours, Path(config.out).expanduser())
        say(f"{config.out}/kernels.md and kernels.csv: {summary(shown)}")
    for row in ours:
        if row.invalid:
            say(f"{row.measure}: {row.checkpoint}: {'; '.join(row.invalid)}")
    left = len(keys.keys() - {row.key for row in ours})
    if left:
        raise environment_failure(
            f"{left} of {len(wanted)} products are not measured: they failed, or seconds="
            f"{config.seconds:g} were over; the same command goes on"
        )


def generations(rows: list[Row]) -> dict[str, int]:
    """The last generation of every kernel's key."""
    return {row.key: row.generation for row in current(rows) if isinstance(row, KernelRow)}


def environment() -> Environment:
    """The machine and software that times depend on."""
    facts = GpuWatch().facts()
    return Environment(
        device=(gpu_names() or ["cpu"])[0],
        **(asdict(facts) if facts else {}),
        cpu=cpu_name(),
        cores=os.cpu_count(),
        python=platform.python_version(),
        versions=versions(),
        commit=commit(),
        command=command(sys.orig_argv),
        kernels_version=VERSION,
    )


def key_of(case: KernelCase, here: Environment) -> str:
    """Equal for rows of one product on the same GPU, versions and kernels."""
    identity = ["kernel", here.model_dump(include=OF_KEY), asdict(case)]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _new_rows(
    config: KernelGridConfig, missing: list[KernelCase], here: Environment, known: dict[str, int]
) -> Iterator[KernelRow]:
    if not missing:
        return
    import torch

    from evaluate.kernels.layers import made_layer
    from evaluate.kernels.measuring import Pair, measured, torch_times
    from evaluate.measure.rates.known import rates
    from serve.kernels.products.product import Unusable

    limits = rates(config.gpu)
    device, end = torch.device("cuda", 0), time.monotonic() + config.seconds
    beside: dict[tuple[int, int, int], Pair] = {}
    for number, case in enumerate(missing, start=1):
        if time.monotonic() > end:
            return
        shape = (case.tokens, case.in_features, case.out_features)
        if shape not in beside:
            beside[shape] = torch_times(case, device)
        bandwidth = limits.bandwidth if limits else None
        try:
            found_here = measured(case, made_layer(case, device), beside[shape], bandwidth)
        except (RuntimeError, Unusable) as error:  # of this product alone
            say(f"{case.name}: failed: {error}")
            continue
        for found in found_here:
            key = key_of(case, here)
            yield KernelRow(
                model=case.model or case.grid,
                checkpoint=found.product,
                measure=case.name,
                repeat=0,
                key=key,
                values=found.values,
                settings=case.settings(),
                environment=here,
                invalid=found.invalid,
                generation=known.get(key, -1) + 1 if config.force else known.get(key, 0),
                time=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            say(
                f"{number} of {len(missing)}: {case.name}: {found.product}: "
                f"{_result(found.values.ratio)}"
            )
        torch.cuda.empty_cache()


def _result(ratio: float | None) -> str:
    return "no time" if ratio is None else f"{ratio:.2f} of torch's time"
