"""`python -m evaluate.sweep.benchmark launcher=NAME`: what a launcher costs for each job.

The jobs sleep for a fixed time instead of starting an engine. So what a sweep takes longer than the
sleep is the launcher's: queueing, a new process, our imports, the record, and noticing the end.
"""

import heapq
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from conf.app import run
from conf.compose import Command
from conf.errors import QuantlineError, bad_input, environment_failure
from conf.launch.hooks import SweepHooks
from conf.launch.options import LOCAL, LauncherConfig
from conf.launch.planning import PlannedTask
from conf.launch.runners import Resources, start_runner
from conf.launch.task import JOB_VARIABLE, Record, Task
from conf.launch.watching import Watch
from conf.schema.ranges import not_empty, within
from conf.terminal import say


@dataclass
class SweepBenchmarkConfig:
    """Measures the overhead of a launcher for each job, with jobs that sleep."""

    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    jobs: int = field(default=8, metadata=within(1, 1000))
    """Jobs of the sweep."""
    at_once: int | None = field(default=None, metadata=within(1, 1000))
    """Jobs that run at once: what the cluster has room for. null is launcher.workers, or 1."""
    seconds: float = field(default=5.0, metadata=within(0, 3600))
    """Seconds that a job sleeps, in place of its engine."""
    spread: float = field(default=0.0, metadata=within(0, 3600))
    """Seconds between the shortest and the longest sleep; their mean stays. Jobs of one length end
    in step with a scheduler that starts jobs once a second, which real ones do not."""
    folder: str = field(default=".", metadata=not_empty())
    """Where a temporary folder for the jobs is made. All machines must see it."""

    def __post_init__(self) -> None:
        if self.spread > 2 * self.seconds:
            raise ValueError(f"spread={self.spread}: is more than twice seconds={self.seconds}")

    @property
    def sleeps(self) -> list[float]:
        """The seconds of each job: short and long ones in turns, so that no worker has only one
        kind."""
        steps = max(1, self.jobs - 1)
        rising = [self.seconds + self.spread * (n / steps - 0.5) for n in range(self.jobs)]
        if self.jobs == 1:
            return [self.seconds]
        return [rising[n // 2] if n % 2 == 0 else rising[-1 - n // 2] for n in range(self.jobs)]


class SleepingJobs(SweepHooks):
    """Jobs without results."""

    def folder(self, config: SweepBenchmarkConfig) -> Path:
        return Path(config.folder)

    def label(self, config: SweepBenchmarkConfig) -> str:
        return "sleep"

    def gpus(self, config: SweepBenchmarkConfig) -> int:
        return 1

    def check(self, configs: list[SweepBenchmarkConfig]) -> None:
        """There is nothing to check."""

    def is_done(self, config: SweepBenchmarkConfig, record: Record) -> bool:
        return False

    def in_job(self, config: SweepBenchmarkConfig, shard: Path) -> SweepBenchmarkConfig:
        return replace(config, launcher=LauncherConfig())

    def outputs(self, config: SweepBenchmarkConfig) -> list[str]:
        return []

    @contextmanager
    def holding(self, configs: list[SweepBenchmarkConfig]) -> Iterator[None]:
        yield

    def gather(self, configs: list[SweepBenchmarkConfig]) -> None:
        """There is nothing to gather."""

    def finish(self, configs: list[SweepBenchmarkConfig]) -> list[QuantlineError]:
        return []


COMMAND = Command(
    "sweep_benchmark",
    SweepBenchmarkConfig,
    (
        "python -m evaluate.sweep.benchmark launcher=local",
        "python -m evaluate.sweep.benchmark launcher=slurm at_once=2 launcher.gpus_per_job=1",
        "python -m evaluate.sweep.benchmark launcher=ray launcher.workers=2 at_once=2",
    ),
    module="evaluate.sweep.benchmark",
)
JOB_COMMAND = replace(COMMAND, sweep=SleepingJobs())


def main(config: SweepBenchmarkConfig) -> None:
    at_once = _at_once(config)
    begin = time.perf_counter()
    runner = start_runner(config.launcher, Resources(1))
    say(f"{config.launcher.kind}: ready after {time.perf_counter() - begin:.1f} s")
    folder = Path(tempfile.mkdtemp(prefix="sweep-benchmark-", dir=config.folder)).absolute()
    try:
        watch = Watch(runner, config.launcher.poll_s, lambda: None)
        begin, cpu_before = time.perf_counter(), _cpu_of_children()
        records = watch.run(_planned_jobs(folder, config))
        seconds, cpu = time.perf_counter() - begin, _cpu_of_children() - cpu_before
    except BaseException:
        runner.cancel()
        raise
    finally:
        runner.close()
        shutil.rmtree(folder, ignore_errors=True)
    failed = [record.message for record in records.values() if record.state != "done"]
    if failed:
        raise environment_failure(f"{len(failed)} jobs failed, the first: {failed[0]}")
    rounds = -(-config.jobs // at_once)
    overhead = (seconds - shortest_sweep(config.sleeps, at_once)) / rounds
    shortest, longest = min(config.sleeps), max(config.sleeps)
    length = f"{shortest:g} s" if shortest == longest else f"{shortest:g} to {longest:g} s"
    print(
        f"{config.launcher.kind}: {config.jobs} jobs of {length}, {at_once} at once: "
        f"{seconds:.1f} s, {overhead:.2f} s of overhead for each job"
    )
    if config.launcher.kind == LOCAL:  # other launchers start jobs from processes of their own
        print(f"CPU time of a job: {cpu / config.jobs:.2f} s")


def shortest_sweep(sleeps: list[float], at_once: int) -> float:
    """The seconds of a sweep without overhead: each worker takes the next job when it is free."""
    free_at = [0.0] * at_once
    for seconds in sleeps:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)


def _at_once(config: SweepBenchmarkConfig) -> int:
    workers = config.launcher.workers
    if workers is not None and config.at_once not in (None, workers):
        raise bad_input(f"at_once={config.at_once}: launcher.workers={workers} jobs run at once")
    return config.at_once or workers or 1


def _cpu_of_children() -> float:
    usage = os.times()
    return usage.children_user + usage.children_system


def _planned_jobs(folder: Path, config: SweepBenchmarkConfig) -> list[PlannedTask]:
    module, here = "evaluate.sweep.sleeping_job", str(Path.cwd())
    return [
        PlannedTask(Task(f"sleep-{number}", module, [f"seconds={s:g}"], str(folder), here), config)
        for number, s in enumerate(config.sleeps)
    ]


def sleep(config: SweepBenchmarkConfig) -> None:
    """The work of a job."""
    assert JOB_VARIABLE in os.environ
    time.sleep(config.seconds)


if __name__ == "__main__":
    run(COMMAND, main)
