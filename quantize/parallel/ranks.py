"""The processes of a run, and how they exchange tensors.

They form a group of their own, not torch's default one: llm-compressor and compressed-tensors would
notice that one and split work in their own way. gloo carries host tensors and small objects, NCCL
those of GPUs.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

Value = TypeVar("Value")
# A rank may wait while the first one downloads a model. Whoever started the processes ends those
# that wait for a dead one.
PATIENCE = timedelta(days=2)
FAILURES = "quantline/failures"


class PeerFailed(BaseException):
    """An exchange failed: another process of the run has ended. That one says why. No `Exception`:
    libraries catch these."""


class Ranks:
    """The processes of a run as one of them sees them. Without a store there is one process."""

    def __init__(self, rank: int = 0, size: int = 1, store: dist.Store | None = None) -> None:
        self.rank, self.size, self._store = rank, size, store
        self._backends: dict[str, Any] = {}

    @classmethod
    def joined(cls, url: str, rank: int = -1, size: int = -1) -> "Ranks":
        """Meets the other processes at a URL that torch knows, as env:// or file://PATH."""
        store, rank, size = next(iter(rendezvous(url, rank, size)))
        store.set_timeout(PATIENCE)
        return cls(rank, size, store)

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        return self.size > 1

    def claims_failure(self) -> bool:
        """Whether this process is the first that reports a failure of its own."""
        return self._store is None or self._store.add(FAILURES, 1) == 1

    def in_order(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks, which have the same shape, in the order of the ranks."""
        if not self.are_several:
            return [tensor]
        tensor = tensor.contiguous()
        everyone = [torch.empty_like(tensor) for _ in range(self.size)]
        with _exchange():
            self._backend(tensor.device).allgather([everyone], [tensor]).wait()
        return everyone

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, always in their order: every run gives the same bits."""
        first, *others = self.in_order(tensor)
        for other in others:
            first += other
        return first

    def objects(self, value: Value) -> list[Value]:
        """The small objects of all ranks."""
        if not self.are_several:
            return [value]
        content = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        lengths = [int(length) for length in self.in_order(torch.tensor(len(content)))]
        padded = torch.nn.functional.pad(content, (0, max(lengths) - len(content)))
        everyone = zip(self.in_order(padded), lengths, strict=True)
        return [pickle.loads(bytes(other[:length].numpy())) for other, length in everyone]

    def of_first(self, value: Value) -> Value:
        """The first rank's object."""
        return self.objects(value)[0]

    def first_alone(self, work: Callable[[], Value]) -> Value:
        """What every rank gets from `work`, the others after the first: they find files that it
        has fetched or made."""
        if not self.is_first:
            self.wait()
            return work()
        value = work()
        self.wait()
        return value

    def wait(self) -> None:
        """Returns when every rank has come here."""
        self.objects(None)

    def close(self) -> None:
        """Ends the threads of all exchanges. NCCL's complain when the process ends without it."""
        backend = self._backends.pop("cuda", None)
        if backend is not None and hasattr(backend, "shutdown"):
            backend.shutdown()
        self.close_gloo()

    def close_gloo(self) -> None:
        """Ends the threads that exchange host tensors. One that still lets go of a tensor while
        Python shuts down would abort the process."""
        self._backends.pop("cpu", None)  # its destructor waits for the threads

    def _backend(self, device: torch.device) -> Any:
        if device.type not in self._backends:
            assert self._store is not None
            store = dist.PrefixStore(f"quantline/{device.type}", self._store)
            self._backends[device.type] = _new_backend(device.type, store, self.rank, self.size)
        return self._backends[device.type]


def _new_backend(kind: str, store: dist.Store, rank: int, size: int) -> Any:
    with _exchange():
        if kind == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = PATIENCE
            return dist.ProcessGroupNCCL(store, rank, size, options)
        return dist.ProcessGroupGloo(store, rank, size, PATIENCE)


@contextmanager
def _exchange() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerFailed(str(error)) from error


ALONE = Ranks()
RANKS: ContextVar[Ranks] = ContextVar("ranks", default=ALONE)
"""The processes of this run."""
