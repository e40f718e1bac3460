"""Checks that a mix names known workloads."""

from collections.abc import Iterable

from conf.errors import unknown


def check_mix(mix: Iterable[str], known_workloads: set[str]) -> None:
    """Raises for the first name that is not a known workload."""
    for name in mix:
        if name not in known_workloads:
            raise unknown(f"mix.{name}", name, known_workloads)


def scenario_of(workload: str) -> str:
    """The scenario of a workload. The workload's name is the scenario's, followed by the lengths
    if the scenario ran with several."""
    return workload.partition(" ")[0]
