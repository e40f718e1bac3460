"""Runs a command in several processes, one for each GPU: starts them, or joins torchrun's.

A failure ends all processes. One of them reports it: the first that fails by itself.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.multiprocessing import ProcessExitedException, start_processes

from conf.errors import (
    ENVIRONMENT_FAILURE,
    QuantlineError,
    bad_input,
    environment_failure,
    message_and_code,
)
from conf.schema.commands import QuantizeConfig
from quantize.checkpoint.publish import destination
from quantize.parallel import torchrun
from quantize.parallel.ranks import RANKS, PeerFailed, Ranks

Work = Callable[[QuantizeConfig], Path | None]
FAILURE = "failure.json"
# How long a rank waits to be ended after another one has failed. Who ended first is looked at.
SECONDS_TO_BE_ENDED = 20


def run_in_ranks(config: QuantizeConfig, work: Work) -> Path | None:
    """Runs `work` in as many processes as the config has GPUs; gives the folder it has written."""
    if torchrun.is_rank():
        return _run_as_rank_of_torchrun(config, work)
    if config.gpus == 1 or config.preflight == "only":
        return work(config)
    _start(config, work)
    return destination(config)


# ---- processes that we start ----------------------------------------------------------------


def _start(config: QuantizeConfig, work: Work) -> None:
    _check_gpus(config.gpus)
    with tempfile.TemporaryDirectory(prefix="quantline-ranks-") as folder:
        processes = start_processes(
            _run_started_rank,
            (folder, config, work),
            nprocs=config.gpus,
            join=False,
            start_method="spawn",
        )
        assert processes is not None
        try:
            while not processes.join():
                pass
        except ProcessExitedException as error:
            raise _failure(Path(folder), error) from error
        finally:
            for process in processes.processes:  # those that an interrupted join left
                process.kill()


def _check_gpus(wanted: int) -> None:
    here = torch.cuda.device_count()
    if torch.cuda.is_available() and here < wanted:
        raise environment_failure(f"gpus={wanted}: this machine has {here}")


def _failure(folder: Path, error: ProcessExitedException) -> QuantlineError:
    """What the failed rank wrote; a killed one writes nothing."""
    try:
        content = json.loads((folder / FAILURE).read_text())
    except (OSError, ValueError):
        ended = error.signal_name or f"exit code {error.exit_code}"
        return environment_failure(
            f"process {error.error_index} of the calibration ended with {ended}; finished layers "
            "are kept: run the command again"
        )
    return QuantlineError(content["message"], content["exit_code"])


def _run_started_rank(rank: int, folder: str, config: QuantizeConfig, work: Work) -> None:
    """What each process runs."""
    if not torch.cuda.is_available() and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // config.gpus))
    if rank:
        torchrun.silence()
    ranks = Ranks.joined(f"file://{folder}/store", rank, config.gpus)

    def report(message: str, exit_code: int) -> None:
        content = {"message": message, "exit_code": exit_code}
        (Path(folder) / FAILURE).write_text(json.dumps(content))

    _run_rank(ranks, rank, config, work, report)


# ---- processes of torchrun ------------------------------------------------------------------


def _run_as_rank_of_torchrun(config: QuantizeConfig, work: Work) -> Path | None:
    ranks = Ranks.joined("env://")
    if config.gpus not in (1, ranks.size) or config.shards not in (None, ranks.size):
        option = f"shards={config.shards}" if config.gpus == 1 else f"gpus={config.gpus}"
        raise bad_input(f"{option}: torchrun has started {ranks.size} processes")

    def report(message: str, exit_code: int) -> None:
        if ranks.is_first:
            raise QuantlineError(message, exit_code)
        torchrun.say_despite_silence(f"error: {message}")

    config = replace(config, gpus=ranks.size)
    return _run_rank(ranks, int(os.environ.get("LOCAL_RANK", 0)), config, work, report)


# ---- both -----------------------------------------------------------------------------------


def _run_rank(
    ranks: Ranks,
    gpu: int,
    config: QuantizeConfig,
    work: Work,
    report: Callable[[str, int], None],
) -> Path | None:
    """Runs the work on a GPU of this machine. Leaves by `SystemExit` after a failure."""
    if torch.cuda.is_available():
        _check_gpus(gpu + 1)
        torch.cuda.set_device(gpu)
    RANKS.set(ranks)
    try:
        folder = work(config)
        ranks.wait()  # the others stay until the first has published: it may still fail
        ranks.close()
        return folder
    except PeerFailed:
        ranks.close_gloo()
        time.sleep(SECONDS_TO_BE_ENDED)
        sys.exit(ENVIRONMENT_FAILURE)
    except Exception as error:
        message, exit_code = message_and_code(error)
        ranks.close_gloo()
        if ranks.claims_failure():
            report(message, exit_code)
        sys.exit(exit_code)
