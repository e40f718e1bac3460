"""Whether a mix names workloads that there are."""

from collections.abc import Iterable

from conf.errors import unknown


def check_mix(mix: Iterable[str], known: set[str]) -> None:
    """Refuses the first name that is none of the known workloads."""
    for name in mix:
        if name not in known:
            raise unknown(f"mix.{name}", name, known)


def scenario_of(workload: str) -> str:
    """The scenario of a workload: where a scenario was run with several lengths, they follow its
    name."""
    return workload.partition(" ")[0]
