"""Plans in Quantline's cache, beside the GPU's measured rates: one file for a GPU and versions."""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from conf.cache import LIMITS, cache_root
from conf.files.write_whole import write_whole
from serve.kernels.plans.plan import Plan, Timing
from serve.kernels.plans.trials import Trials

logger = logging.getLogger("vllm.quantline")
VERSION = 2
"""Raised whenever products, their options or the way of measuring change."""
PREFIX = "plans-"
LONGEST_WAIT_S = 300.0


@dataclass(frozen=True)
class Identity:
    """What a measured plan depends on."""

    gpu: str
    torch: str
    vllm: str
    version: int = VERSION

    @property
    def path(self) -> Path:
        words = [self.gpu, f"torch-{self.torch}", f"vllm-{self.vllm}", str(self.version)]
        name = "-".join(re.sub(r"[^\w.+]+", "-", word) for word in words)
        return cache_root() / LIMITS / f"{PREFIX}{name}.json"


@dataclass(frozen=True)
class StoredPlan:
    """The plan of a kind of layer, for one set of products to choose from."""

    key: str
    candidates: tuple[str, ...]
    plan: Plan
    rows: int
    columns: int
    numbers: str
    """The type of the numbers that are multiplied: int8, fp8 or bf16."""


@dataclass(frozen=True)
class KnownTimes:
    """What plans of a kind of layer have measured, whatever else they had to choose from."""

    products: frozenset[str] = frozenset()
    timings: tuple[Timing, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)
    """Products of these that could not be measured, and why."""


@dataclass(frozen=True)
class PlanFile:
    """All plans of one GPU and versions."""

    identity: Identity
    plans: list[StoredPlan] = field(default_factory=list)

    def find(self, key: str, candidates: Sequence[str]) -> Plan | None:
        wanted = tuple(sorted(candidates))
        plans = [stored.plan for stored in self.plans if _place(stored) == (key, wanted)]
        return plans[-1] if plans else None

    def known(self, key: str, candidates: Sequence[str]) -> KnownTimes:
        """The newest times of each candidate that a plan has measured."""
        known = KnownTimes()
        for stored in reversed([stored for stored in self.plans if stored.key == key]):
            new = {*candidates} & {*stored.candidates} - known.products
            timings = [timing for timing in stored.plan.timings if timing.product in new]
            failures = {name: why for name, why in stored.plan.failures.items() if name in new}
            known = KnownTimes(
                known.products | new, (*known.timings, *timings), known.failures | failures
            )
        return known

    def with_plan(self, stored: StoredPlan) -> "PlanFile":
        others = [other for other in self.plans if _place(other) != _place(stored)]
        return replace(self, plans=[*others, stored])


_READER = TypeAdapter(PlanFile)


def _place(stored: StoredPlan) -> tuple[str, tuple[str, ...]]:
    return stored.key, tuple(sorted(stored.candidates))


def identity_here() -> Identity:
    """The first GPU of this process, and the installed versions."""
    import torch
    import vllm

    return Identity(torch.cuda.get_device_name(), torch.__version__, vllm.__version__)


def read_file(path: Path) -> PlanFile | None:
    """The plans of a file; None, with a line in the log, where it cannot be used."""
    try:
        return _READER.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("quantline: %s cannot be read: %s", path, error)
    except ValidationError as error:
        logger.warning("quantline: %s is no file of plans: %s", path, _first_line(error))
    return None


def _first_line(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


def stored_files() -> list[PlanFile]:
    """All readable files of plans in the cache."""
    paths = sorted((cache_root() / LIMITS).glob(f"{PREFIX}*.json"))
    files = [read_file(path) for path in paths]
    return [file for file in files if file is not None]


class PlanStore:
    """The plans of one GPU and versions. A fault of the cache is logged, and never an error: the
    plan is then measured again at the next start."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    @property
    def trials(self) -> Trials:
        return Trials(self.identity.path)

    def find(self, key: str, candidates: Sequence[str]) -> Plan | None:
        return self._file().find(key, candidates)

    def known(self, key: str, candidates: Sequence[str]) -> KnownTimes:
        return self._file().known(key, candidates)

    def keep(self, stored: StoredPlan) -> None:
        """Call it inside `measuring`."""
        content = self._file().with_plan(stored)
        try:
            with write_whole(self.identity.path) as unfinished:
                unfinished.write_text(json.dumps(asdict(content), indent=1) + "\n")
        except OSError as error:
            logger.warning("quantline: %s cannot be written: %s", self.identity.path, error)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """One process at a time measures, so that they do not disturb each other; the next one
        finds the plans of the last."""
        lock = None
        try:
            self.identity.path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(f"{self.identity.path}.lock", timeout=LONGEST_WAIT_S)
            lock.acquire()
        except (OSError, TimeoutError) as error:
            logger.warning("quantline: measuring without a lock: %s", error)
            lock = None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _file(self) -> PlanFile:
        stored = read_file(self.identity.path)
        if stored is None:
            return PlanFile(self.identity)
        if stored.identity != self.identity:
            logger.warning("quantline: %s has plans of another GPU", self.identity.path)
            return PlanFile(self.identity)
        return stored
