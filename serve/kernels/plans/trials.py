"""Products that ended an engine are not tried again.

A kernel that reads beyond its memory, or never ends, takes the whole process along: no exception
tells of it. So a file says what is being tried, as long as it is tried. One whose process is gone
names products that the next engine leaves out.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import psutil
import torch

logger = logging.getLogger("vllm.quantline")


class Trials:
    """The trials of a GPU and versions, as files beside their plans."""

    is_gpu_lost: ClassVar[bool] = False
    """For this process."""

    def __init__(self, plans: Path) -> None:
        self.folder = plans.parent
        self.begin = f"{plans.stem}-{socket.gethostname()}-"

    @contextmanager
    def trying(self, key: str, products: Sequence[str]) -> Iterator[None]:
        """The file stays where the process ends inside, or the GPU no longer works for it."""
        path = self.folder / f"{self.begin}{os.getpid()}-{time.time_ns()}.trial"
        _write(path, json.dumps({"key": key, "products": list(products)}))
        try:
            yield
        except Exception:
            if Trials.is_gpu_lost or _is_gpu_alive():  # whatever follows the loss fails, too
                _remove(path)
            else:
                Trials.is_gpu_lost = True
            raise
        except BaseException:  # the user's interrupt is no fault of a product
            _remove(path)
            raise
        else:
            _remove(path)

    def blamed(self, key: str) -> dict[str, str]:
        """Products that ended an engine with such a layer, and why they are not used."""
        reasons: dict[str, str] = {}
        for path in sorted(self.folder.glob(f"{self.begin}*.trial")):
            try:
                trial = json.loads(path.read_text())
                if trial["key"] == key and _is_left_behind(path):
                    reason = (
                        f"an engine ended while it was tried; delete {path.name} to try it again"
                    )
                    reasons |= dict.fromkeys(trial["products"], reason)
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.debug("quantline: %s: %s", path, error)
        return reasons


def _is_left_behind(path: Path) -> bool:
    """Whether the process that wrote a file is gone; its number may be another one's by now."""
    number = int(path.stem.split("-")[-2])
    try:
        started: float = psutil.Process(number).create_time()
        return started > path.stat().st_mtime
    except psutil.NoSuchProcess:
        return True


def _is_gpu_alive() -> bool:
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception:
        return False
    return True


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        logger.debug("quantline: %s: %s", path, error)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.debug("quantline: %s: %s", path, error)
