"""Writes finished layers in a thread, so that the next layer does not wait for the disk."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from loguru import logger

MOST_WAITING = 2  # layers that may wait for the disk; their weights stay in memory until then


class LayerWriter:
    """Runs writes one after the other, in their order, in one thread.

    A failed write raises at the next call, or at the end, and no later write is run. Leaving the
    context waits for every write: after an error, too, the layers finished before it are kept.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="layer-writer")
        self._writes: deque[Future[None]] = deque()
        self._has_failed = False

    def submit(self, write: Callable[[], None]) -> None:
        """Queues a write; waits while the queue is full. What it reads must not change before the
        next `flush`."""
        while self._writes and (self._writes[0].done() or len(self._writes) >= MOST_WAITING):
            self._finish_oldest()
        self._writes.append(self._thread.submit(self._run, write))

    def flush(self) -> None:
        """Waits for every queued write."""
        while self._writes:
            self._finish_oldest()

    def __enter__(self) -> "LayerWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.flush()
        except Exception as write_error:
            if error is None:
                raise
            logger.warning(f"while the run failed, a layer was not saved: {write_error}")
        finally:
            self._thread.shutdown(wait=True)

    def _run(self, write: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            write()
        except BaseException:
            self._has_failed = True
            raise

    def _finish_oldest(self) -> None:
        self._writes.popleft().result()
