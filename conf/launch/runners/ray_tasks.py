"""launcher=ray: tasks of a Ray cluster. Ray chooses the node and the GPUs of each."""

import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from conf import ROOT
from conf.errors import bad_input, environment_failure, one_line
from conf.launch.options import LauncherConfig
from conf.launch.records import read_record
from conf.launch.runners import JobState, Resources, Runner, chosen_gpus
from conf.launch.task import Task
from conf.process.messages import encode

# Variables of the driver that a job on another node needs. No secret is sent.
SENT = ("QUANTLINE_", "VLLM_", "HF_", "TORCH", "PYTORCH_", "OMP_", "MKL_", "XDG_CACHE_HOME")
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
AUTO = "auto"
SECONDS_TO_CONNECT = 10


class RayRunner(Runner):
    """Submits each task with the resources of a job."""

    def __init__(self, options: LauncherConfig, resources: Resources) -> None:
        import ray

        self.ray, self.options = ray, options
        self._connect()
        try:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            most = int(max((node.get("GPU", 0) for node in nodes), default=0))
            where = "the largest node of the Ray cluster"
            self.gpus_per_job = chosen_gpus(options, resources, most, where)
            self.cpus = options.cpus_per_job or 1
            self._check(nodes, where)
        except BaseException:
            self.close()
            raise
        self.waiting: deque[Task] = deque()
        self.references: dict[str, Any] = {}
        self.tasks: dict[str, Task] = {}
        self.ended: dict[str, JobState] = {}

    def _connect(self) -> None:
        """Connects to the cluster, or starts one on this machine."""
        options = self.options
        # Ray would send usage statistics, and warn of what it does with unused GPUs.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        size: dict[str, Any] = {"address": options.address}
        if options.address is None:
            size = {"address": "local", "include_dashboard": False}
            if options.workers is not None:
                size["num_cpus"] = options.workers * (options.cpus_per_job or 1)
        else:
            check_address(options.address)
        try:
            self.ray.init(**size, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            place = f"launcher.address={options.address}" if options.address else "launcher=ray"
            raise environment_failure(f"{place}: {one_line(error)}") from error

    def _check(self, nodes: list[dict[str, float]], where: str) -> None:
        most = int(max((node.get("CPU", 0) for node in nodes), default=0))
        if self.cpus > most:
            raise bad_input(f"launcher.cpus_per_job={self.cpus}: {where} has {most}")
        most_gib = max((node.get("memory", 0) for node in nodes), default=0) / 2**30
        if self.options.memory_gib and self.options.memory_gib > most_gib:
            raise bad_input(
                f"launcher.memory_gib={self.options.memory_gib:g}: {where} has {most_gib:.1f}"
            )

    def submit(self, tasks: list[Task]) -> None:
        self.waiting.extend(tasks)
        self.tasks |= {task.name: task for task in tasks}
        self._top_up()

    def _top_up(self) -> None:
        """Hands tasks to Ray: all of them, or as many as may run at once."""
        limit = self.options.parallel or len(self.waiting) + len(self.references)
        while self.waiting and len(self.references) - len(self.ended) < limit:
            task = self.waiting.popleft()
            memory = self.options.memory_gib
            remote = self.ray.remote(
                num_cpus=self.cpus,
                num_gpus=self.gpus_per_job,
                memory=int(memory * 2**30) if memory else None,
                max_retries=self.options.restarts,
                name=task.name,
            )(on_worker())
            cpus = None if self.gpus_per_job else self.cpus
            self.references[task.name] = remote.remote(
                str(ROOT), encode(task), sent_variables(), cpus
            )

    def states(self) -> dict[str, JobState]:
        running = {ref: name for name, ref in self.references.items() if name not in self.ended}
        if running:
            ended, _ = self.ray.wait(list(running), num_returns=len(running), timeout=0)
            for reference in ended:
                self.ended[running[reference]] = self._end_of(reference)
        self._top_up()
        return {name: self._state(name, task) for name, task in self.tasks.items()}

    def _end_of(self, reference: Any) -> JobState:
        try:
            self.ray.get(reference)
        except Exception as error:
            return JobState("ended", f"Ray: {one_line(error)}")
        return JobState("ended")

    def _state(self, name: str, task: Task) -> JobState:
        """Ray says that a task has not ended; its record says whether it began."""
        if name in self.ended:
            return self.ended[name]
        record = read_record(task.record_file) if name in self.references else None
        return JobState("running" if record and record.state == "running" else "queued")

    def cancel(self) -> None:
        for name, reference in self.references.items():
            if name not in self.ended:
                with suppress(Exception):  # it may have ended by now
                    self.ray.cancel(reference, force=True)
        self.waiting.clear()

    def close(self) -> None:
        self.ray.shutdown()


def check_address(address: str) -> None:
    """Raises where nobody listens at HOST:PORT. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        return  # auto, or a form that Ray judges
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise environment_failure(f"launcher.address={address}: {one_line(error)}") from error


def sent_variables() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(SENT) and not any(word in name for word in SECRET)
    }


def on_worker() -> Callable[[str, bytes, dict[str, str], int | None], None]:
    """The function that runs on a node. As a local function it is pickled with its code: the node's
    Python does not know our packages yet."""

    def run(root: str, sent_task: bytes, variables: dict[str, str], cpus: int | None) -> None:
        import os
        import sys

        import ray

        if root not in sys.path:
            sys.path.insert(0, root)
        from conf.launch.run_task import job_variables, run_task
        from conf.launch.task import Task
        from conf.process.messages import decode

        task = decode(sent_task, [Task])
        gpus = ",".join(str(number) for number in ray.get_gpu_ids())
        # Ray sets OMP_NUM_THREADS in its workers; the job gets what the user set.
        own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        run_task(task, job_variables(task, own | variables, gpus, cpus))

    return run


RUNNER = RayRunner
