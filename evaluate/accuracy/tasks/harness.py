"""The harness's process: its interpreter, the tasks it is asked for, and talking to it."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import yaml

from conf import ROOT
from conf.entry import IS_WHEEL
from conf.errors import bad_input, world_fault
from conf.models import files_sha256
from conf.process.running import Running
from evaluate.accuracy.tasks.events import (
    HARNESS_EVENTS,
    AskFailed,
    AskTask,
    LoadTasks,
    SamplesWritten,
    Task,
    TasksLoaded,
)
from serve.engine.client import API_KEY

INTERPRETER = "QUANTLINE_LM_EVAL"
OWN_INTERPRETER = ROOT / ".venv-lm-eval" / "bin" / "python"
HOW_TO_GET_IT = (
    f"install lm-eval beside Quantline, or name a Python that has it with {INTERPRETER}"
    if IS_WHEEL
    else "`make setup-lm-eval` makes .venv-lm-eval"
)
SCRIPT = Path(__file__).with_name("harness_process.py")
NOWHERE = "/"  # datasets takes a folder of the right name for the set that it looks for
PROGRESS = re.compile(rb"Requesting API:.*?(\d+)/(\d+) \[")
FILE_NAME = re.compile(r"[\w./-]+\.\w+")
VERSION = "import importlib.metadata; print(importlib.metadata.version('lm_eval'))"
SECONDS_BETWEEN_LOOKS = 0.5


def interpreter() -> tuple[Path, str]:
    """The Python that has the harness, and the harness's version."""
    # Beside a wheel, Hugging Face's `evaluate` has its name to itself.
    default = Path(sys.executable) if IS_WHEEL else OWN_INTERPRETER
    path = Path(os.environ.get(INTERPRETER) or default).expanduser()
    if not path.is_file():
        raise bad_input(f"accuracy=lm_eval: there is no {path}; {HOW_TO_GET_IT}")
    command = [str(path), "-P", "-c", VERSION]
    found = subprocess.run(
        command, cwd=NOWHERE, env=_variables(), capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise bad_input(f"accuracy=lm_eval: {path} has no lm-eval; {HOW_TO_GET_IT}")
    return path, found.stdout.strip()


def tasks(entries: list[str]) -> list[Task]:
    """What accuracy.tasks names: tasks that come with the harness, or files."""
    found = [_from_file(Path(e).expanduser()) if _is_file(e) else Task(e) for e in entries]
    names = [task.name for task in found]
    for name in names:
        if names.count(name) > 1:
            raise bad_input(f"accuracy.tasks: two are called {name}")
    return found


def _is_file(entry: str) -> bool:
    return entry.endswith((".yaml", ".yml")) or "/" in entry


class _Loader(yaml.SafeLoader):
    """Reads what the harness's own loader gives a meaning to, such as !function, as nothing."""


_Loader.add_multi_constructor("!", lambda *_: None)


def _from_file(path: Path) -> Task:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise bad_input(f"accuracy.tasks: {path} cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split())
        raise bad_input(f"accuracy.tasks: {path} is no YAML ({words})") from error
    content = content if isinstance(content, dict) else {}
    names = [content.get(key) for key in ("task", "group")]
    name = next((name for name in names if isinstance(name, str)), None)
    if name is None:
        raise bad_input(f"accuracy.tasks: {path} does not name its task: `task: NAME`")
    folder = path.resolve().parent
    return Task(name, str(folder), files_sha256(_parts(folder)))


def _parts(folder: Path) -> list[Path]:
    """What a task may be made of: the tasks and functions in its folder, and the data they name."""
    found = {path for kind in ("*.yaml", "*.yml", "*.py") for path in folder.glob(kind)}
    text = "\n".join(path.read_text(errors="replace") for path in found)
    named = {folder / name for name in FILE_NAME.findall(text)}
    return sorted(found | {path for path in named if path.is_file()})


def _variables() -> dict[str, str]:
    """Without what could put our packages on its path, and with the server's key."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"OPENAI_API_KEY": os.environ.get(API_KEY, ""), "TOKENIZERS_PARALLELISM": "false"}


class Harness:
    """The harness, started once for all servers that it asks."""

    def __init__(self, path: Path, log: Path, progress: Callable[[int, int], None]) -> None:
        self.log = log
        self.process = Running(
            [str(path), "-P", str(SCRIPT)], HARNESS_EVENTS, "lm-eval", log, _variables(), NOWHERE
        )
        self.events = self.process.events()
        self.bars = _BarReader(log, progress)

    def load(self, wanted: list[Task]) -> dict[str, str]:
        """Has it load the tasks, before anything is asked; what is wrong with which."""
        loaded = self._exchange(LoadTasks(wanted, any(not task.folder for task in wanted)))
        assert isinstance(loaded, TasksLoaded)
        if loaded.unknown:
            name, close = next(iter(loaded.unknown.items()))
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise bad_input(f"accuracy.tasks: the harness has no task '{name}'.{hint}")
        return loaded.problems

    def ask(self, request: AskTask) -> None:
        """Asks a server one task; the samples are in the request's folder afterwards."""
        self._exchange(request)

    def close(self) -> None:
        self.bars.close()
        self.process.close()

    def _exchange(self, request: LoadTasks | AskTask) -> TasksLoaded | SamplesWritten:
        self.process.send(request)
        event = next(self.events, None)
        if event is None:
            raise self.process.crash()
        if isinstance(event, AskFailed):
            raise world_fault(f"lm-eval: {event.message} (see {self.log})")
        return event


class _BarReader:
    """Reads how far the harness is from the bars in its log."""

    def __init__(self, log: Path, progress: Callable[[int, int], None]) -> None:
        self.log, self.progress = log, progress
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.ended.set()
        self.thread.join()

    def _read(self) -> None:
        with self.log.open("rb") as log:
            while not self.ended.wait(SECONDS_BETWEEN_LOOKS):
                shown = PROGRESS.findall(log.read())
                if shown:
                    self.progress(int(shown[-1][0]), int(shown[-1][1]))
