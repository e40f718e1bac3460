"""Options of the launcher that runs the jobs of a sweep (`-m`)."""

import re
from dataclasses import dataclass, field, fields

from conf.schema.ranges import above, choices, within

NONE, LOCAL, SLURM, RAY = LAUNCHERS = ("none", "local", "slurm", "ray")
# The launchers that each option belongs to; another one would ignore it.
BELONGS_TO = {
    "workers": (LOCAL, RAY),
    "gpus_per_job": (LOCAL, SLURM, RAY),
    "gpu_type": (SLURM,),
    "cpus_per_job": (SLURM, RAY),
    "memory_gib": (SLURM, RAY),
    "minutes": (SLURM,),
    "partition": (SLURM,),
    "account": (SLURM,),
    "qos": (SLURM,),
    "parallel": (SLURM, RAY),
    "setup": (SLURM,),
    "address": (RAY,),
    "restarts": (SLURM, RAY),
    "poll_s": (LOCAL, SLURM, RAY),
}
# These become options of sbatch, so they hold nothing that would begin another one.
SBATCH_NAMES = ("partition", "account", "qos", "gpu_type")
SBATCH_NAME = re.compile(r"[A-Za-z0-9_][\w.,@+-]*")


@dataclass
class LauncherConfig:
    """Where the jobs of a sweep (`-m`) run."""

    kind: str = field(default=NONE, metadata=choices(*LAUNCHERS))
    """none (one after another, in this process), local, slurm or ray."""
    workers: int | None = field(default=None, metadata=within(1, 1024))
    """For local: most jobs at once; null is one for each GPU, or one on a CPU. For ray without an
    address: the jobs that the started cluster has room for."""
    gpus_per_job: int | None = field(default=None, metadata=within(0, 64))
    """GPUs of one job, which sees no others; null is what its engine needs, or 0 without GPUs."""
    gpu_type: str | None = None
    """For slurm: the type of the GPUs, as the cluster names it in gpu:TYPE:COUNT."""
    cpus_per_job: int | None = field(default=None, metadata=within(1, 4096))
    """CPUs of one job; null is the cluster's default, and 1 on Ray."""
    memory_gib: float | None = field(default=None, metadata=above(0, 1e5))
    """Main memory of one job; null is the cluster's default."""
    minutes: int | None = field(default=None, metadata=within(1, 525600))
    """For slurm: time limit of one job, which is queued again and goes on when it reaches it; null
    is 240, or the partition's limit if that is shorter."""
    partition: str | None = None
    """For slurm: the partition; null is the cluster's default."""
    account: str | None = None
    """For slurm: the account that is charged."""
    qos: str | None = None
    """For slurm: the quality of service."""
    parallel: int | None = field(default=None, metadata=within(1, 10000))
    """Most jobs that run at once; null is no limit."""
    setup: list[str] = field(default_factory=list)
    """For slurm: shell commands that a job runs first, as 'module load cuda'."""
    address: str | None = None
    """For ray: the address of a running cluster, or auto; null starts one on this machine."""
    restarts: int = field(default=3, metadata=within(0, 1000))
    """How often a job is started again: on Slurm after its time limit, on Ray after a lost node. A
    job that Slurm preempts is always started again."""
    poll_s: float = field(default=1.0, metadata=above(0, 3600))
    """Seconds between two looks at the jobs."""

    def __post_init__(self) -> None:
        for option in fields(self):
            kinds = BELONGS_TO.get(option.name)
            default = [] if option.name == "setup" else option.default
            if kinds and self.kind not in kinds and getattr(self, option.name) != default:
                raise ValueError(
                    f"launcher.{option.name} works only with launcher={' or '.join(kinds)}, not "
                    f"with launcher={self.kind}"
                )
        for name in SBATCH_NAMES:
            value = getattr(self, name)
            if value is not None and not SBATCH_NAME.fullmatch(value):
                raise ValueError(f"launcher.{name}={value!r}: is no name that Slurm could have")
        for command in self.setup:
            if not command.strip() or "\n" in command:
                raise ValueError(f"launcher.setup={command!r}: give one shell command an entry")
        if self.address is not None and not self.address.strip():
            raise ValueError("launcher.address: must not be empty")
        if self.address is not None and self.workers is not None:
            raise ValueError("launcher.workers: a running Ray cluster has its own size")
