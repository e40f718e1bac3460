"""A real Slurm cluster of one node on this machine, with two made-up GPUs, for tests.

It needs root, Debian's slurm-wlm and munge, and no systemd. munge's socket and key are its own, so
that a cluster that the machine has already is left alone.
"""

import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serve.engine.process import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "srun")
SECONDS_TO_START = 300  # on a busy machine
# The most that a device number of a made-up GPU needs: the same as /dev/null.
NULL_DEVICE = os.makedev(1, 3)

# A requeued job waits until its credential has expired: two minutes by default, 5 s at least.
# With an epilog, as most clusters have one, slurmd reports the end of a job and slurmctld looks for
# the next one at once. Without one, slurmctld does so at its next turn, up to a second later.
SLURM_CONF = """
ClusterName=quantline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
ReturnToService=2
MpiDefault=none
JobRequeue=1
KillWait=1
Epilog={epilog}
MinJobAge=300
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 Gres=gpu:2
PartitionName=main Nodes={host} Default=YES MaxTime=60 State=UP OverSubscribe=NO
PartitionName=other Nodes={host} MaxTime=60 State=UP
"""


def reason_for_none() -> str:
    """Why there can be no cluster here; empty where there can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root here"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{missing[0]} is not installed (apt-get install slurm-wlm munge)" if missing else ""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Starts the daemons, yields the variables that Slurm's commands need, and stops them."""
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        _write_files(folder)
        variables = dict(os.environ) | {"SLURM_CONF": str(folder / "slurm.conf")}
        munged = ["munged", "--foreground", "--force", f"--key-file={folder / 'munge.key'}"]
        munged += [f"--socket={folder / 'munge.socket'}", f"--pid-file={folder / 'munge.pid'}"]
        munged += [f"--log-file={folder / 'munge.log'}", f"--seed-file={folder / 'munge.seed'}"]
        daemons.append(_started(munged, variables, folder))
        _wait_for(lambda: (folder / "munge.socket").exists(), "munged", folder)
        daemons.append(_started(["slurmctld", "-D", "-i"], variables, folder))
        daemons.append(_started(["slurmd", "-D", "-N", _host()], variables, folder))
        _wait_for(lambda: _is_idle(variables), "the node", folder)
        yield {"SLURM_CONF": variables["SLURM_CONF"]}
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _host() -> str:
    return socket.gethostname().split(".")[0]


def _write_files(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    epilog = shutil.which("true")
    ports = {"controller_port": free_port(), "node_port": free_port()}
    (folder / "slurm.conf").write_text(
        SLURM_CONF.format(folder=folder, host=_host(), epilog=epilog, **ports)
    )
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    for number in range(2):
        os.mknod(folder / f"fake{number}", stat.S_IFCHR | 0o666, NULL_DEVICE)
    gres = f"NodeName={_host()} Name=gpu File={folder}/fake[0-1]\n"
    (folder / "gres.conf").write_text(gres)


def _started(
    command: list[str], variables: dict[str, str], folder: Path
) -> "subprocess.Popen[bytes]":
    with (folder / f"{command[0]}.out").open("ab") as output:
        return subprocess.Popen(command, env=variables, stdout=output, stderr=output)


def _is_idle(variables: dict[str, str]) -> bool:
    command = ["sinfo", "--noheader", "--format=%T", "--partition=main"]
    answer = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return answer.stdout.strip() == "idle"


def _wait_for(is_ready, what: str, folder: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while not is_ready():
        if time.monotonic() > deadline:
            logs = [f"{path.name}: {path.read_text()[-600:]}" for path in folder.glob("*.log")]
            raise RuntimeError(f"{what} did not start in {SECONDS_TO_START} s\n" + "\n".join(logs))
        time.sleep(0.2)
