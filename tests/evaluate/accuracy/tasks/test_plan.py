"""Which tasks have still to be asked, and which can be judged at once."""

from pathlib import Path

from evaluate.accuracy.tasks.events import Task
from evaluate.accuracy.tasks.plan import Checkpoint, answered_of, missing_of

TASKS = [Task("arc"), Task("gsm8k")]


def checkpoints(*names: str) -> dict[str, Checkpoint]:
    return {
        name: Checkpoint(
            name, Path("/m"), "5ha", 512, {}, {task.name: Path(name, task.name) for task in TASKS}
        )
        for name in names
    }


def test_what_lies_there_is_not_asked_again() -> None:
    both = checkpoints("original", "w8")
    kept = {Path("original/arc"), Path("original/gsm8k"), Path("w8/arc")}
    missing = missing_of(both, lambda path: path in kept)
    assert [(part.checkpoint.name, part.tasks) for part in missing] == [("w8", ["gsm8k"])]
    judged = answered_of(both, TASKS, missing)
    assert [(checkpoint.name, task.name) for checkpoint, task in judged] == [
        ("original", "arc"), ("original", "gsm8k"), ("w8", "arc"),
    ]  # fmt: skip


def test_nothing_is_judged_against_an_original_that_has_still_to_answer() -> None:
    both = checkpoints("original", "w8")
    missing = missing_of(both, lambda path: path == Path("w8/arc"))
    assert [(part.checkpoint.name, part.tasks) for part in missing] == [
        ("original", ["arc", "gsm8k"]),
        ("w8", ["gsm8k"]),
    ]
    assert answered_of(both, TASKS, missing) == []


def test_nothing_is_asked_without_an_original() -> None:
    alone = checkpoints("w8")
    assert missing_of(alone, lambda _: False) == []
    assert answered_of(alone, TASKS, []) == []
