"""launcher=local: one process for each GPU of this machine, or a number of them on a CPU."""

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from conf.hardware import gpu_handles
from conf.launch.options import LauncherConfig
from conf.launch.run_task import Process, inherited, job_variables, run_task
from conf.launch.runners import JobState, Resources, Runner, chosen_gpus
from conf.launch.task import Task
from conf.process.visible_gpus import VISIBLE
from conf.terminal import say


class LocalRunner(Runner):
    """A thread for each worker. Each thread runs one job's process at a time."""

    def __init__(self, options: LauncherConfig, resources: Resources) -> None:
        here = visible_gpus()
        self.gpus_per_job = chosen_gpus(options, resources, len(here), "this machine")
        self.slots = gpu_sets(here, self.gpus_per_job, options.workers)
        self.cpus: int | None = None
        if not self.gpus_per_job and len(self.slots) > 1:
            self.cpus = max(1, (os.cpu_count() or 1) // len(self.slots))
            say(
                f"launcher.workers={len(self.slots)}: the jobs share this CPU. Rows record it, and "
                "are not compared with those of a job that ran alone"
            )
        self.waiting: SimpleQueue[Task] = SimpleQueue()
        self.known: dict[str, JobState] = {}
        self.lock = threading.Lock()
        self.processes: dict[str, Process] = {}
        self.threads: list[threading.Thread] = []
        self.is_cancelled = False

    def submit(self, tasks: list[Task]) -> None:
        for task in tasks:
            self.known[task.name] = JobState("queued")
            self.waiting.put(task)
        for number, gpus in enumerate(self.slots):
            if number >= len(self.threads):
                self.threads.append(self._thread(gpus))
            elif not self.threads[number].is_alive():
                self.threads[number] = self._thread(gpus)

    def _thread(self, gpus: str) -> threading.Thread:
        thread = threading.Thread(target=self._work, args=(gpus,), daemon=True)
        thread.start()
        return thread

    def _work(self, gpus: str) -> None:
        """Runs waiting tasks until there is none."""
        while not self.is_cancelled:
            try:
                task = self.waiting.get_nowait()
            except Empty:
                return
            self.known[task.name] = JobState("running")
            reason = ""
            try:
                variables = job_variables(task, inherited(), gpus, self.cpus)
                run_task(task, variables, self._started(task), lambda: self.is_cancelled)
            except Exception as error:  # the thread must not end without a word
                reason = f"{type(error).__name__}: {error}"
            self.known[task.name] = JobState("ended", reason)

    def _started(self, task: Task) -> Callable[[Process], None]:
        def remember(process: Process) -> None:
            with self.lock:
                self.processes[task.name] = process
                if self.is_cancelled:
                    process.close()

        return remember

    def states(self) -> dict[str, JobState]:
        return dict(self.known)

    def cancel(self) -> None:
        with self.lock:
            self.is_cancelled = True
            for process in self.processes.values():
                process.close()
        for thread in self.threads:
            thread.join()


def visible_gpus() -> list[str]:
    """The GPUs that programs here may use, as CUDA_VISIBLE_DEVICES names them."""
    count = len(gpu_handles())
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return [str(number) for number in range(count)]
    return [entry.strip() for entry in visible.split(",") if entry.strip()][:count]


def gpu_sets(gpus: list[str], per_job: int, workers: int | None) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each worker. No GPU is in two of them."""
    if not per_job:
        return [""] * (workers or 1)
    sets = [
        ",".join(gpus[first : first + per_job])
        for first in range(0, len(gpus) - per_job + 1, per_job)
    ]
    return sets[: workers or len(sets)]


RUNNER = LocalRunner
