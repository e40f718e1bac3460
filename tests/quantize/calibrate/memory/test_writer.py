"""The thread that writes finished layers: in order, bounded, and no error is lost."""

import errno
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from conf.errors import QuantlineError
from quantize.calibrate import resume
from quantize.calibrate.memory.writer import MOST_WAITING, LayerWriter
from quantize.calibrate.resume import LayerNotes, WorkFolder, host_tensors

NOTES = LayerNotes(errors={}, fallbacks=[])


def test_writes_are_done_in_their_order() -> None:
    written: list[int] = []
    with LayerWriter() as writer:
        for number in range(20):
            writer.submit(partial(written.append, number))
    assert written == list(range(20))


def test_only_a_few_layers_wait() -> None:
    may_write, written, submitted = threading.Event(), [], []

    def write(number: int) -> None:
        assert may_write.wait(60)
        written.append(number)

    def submit_all(writer: LayerWriter) -> None:
        for number in range(MOST_WAITING + 3):
            writer.submit(partial(write, number))
            submitted.append(number)

    with LayerWriter() as writer:
        thread = threading.Thread(target=submit_all, args=[writer])
        thread.start()
        thread.join(0.3)
        assert len(submitted) <= MOST_WAITING
        may_write.set()
        thread.join()
    assert written == submitted == list(range(MOST_WAITING + 3))


def test_an_error_comes_back_at_the_next_call_and_ends_the_writing() -> None:
    written: list[int] = []

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), LayerWriter() as writer:  # noqa: PT012
        writer.submit(fail)
        for number in range(3 * MOST_WAITING):
            writer.submit(partial(written.append, number))
    assert written == []


def test_an_error_comes_back_at_the_end_and_only_once() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), LayerWriter() as writer:
        writer.submit(fail)
    with LayerWriter() as writer:
        writer.submit(fail)
        with pytest.raises(ValueError, match="no"):
            writer.flush()


def test_after_another_error_finished_layers_are_written_and_that_error_stays() -> None:
    written: list[int] = []

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(KeyError), LayerWriter() as writer:  # noqa: PT012
        writer.submit(partial(written.append, 1))
        raise KeyError("the run's own")
    assert written == [1]
    with pytest.raises(KeyError), LayerWriter() as writer:  # noqa: PT012
        writer.submit(fail)
        raise KeyError("the run's own")


def test_a_full_disk_is_the_same_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    work = WorkFolder(tmp_path / "work", {})
    monkeypatch.setattr(resume, "save_file", refuse)
    tensors = host_tensors({"m": torch.nn.Linear(2, 2)})
    expected = pytest.raises(QuantlineError, match=r"work: could not be written \(No space left")
    with expected as error, LayerWriter() as writer:
        writer.submit(partial(work.write, 0, 0, tensors, NOTES))
    assert error.value.exit_code == 3
    assert not work.has(0, 0)
