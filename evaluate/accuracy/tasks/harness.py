"""Runs lm-eval's process: its interpreter, the tasks, and the messages to it."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import yaml

from conf import ROOT
from conf.entry import IS_WHEEL
from conf.errors import bad_input, environment_failure
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
NOWHERE = "/"  # datasets prefers a local folder with the name of the data set that it loads
PROGRESS = re.compile(rb"Requesting API:.*?(\d+)/(\d+) \[")
FILE_NAME = re.compile(r"[\w./-]+\.\w+")
VERSION = (
    "import importlib.metadata as found; package = found.distribution('lm_eval'); "
    "print(package.version); print(package.locate_file('lm_eval/tasks'))"
)
SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class Interpreter:
    """The Python that has the harness."""

    path: Path
    version: str
    """The harness's version."""
    tasks: Path
    """The folder of the harness's own task definitions."""


def interpreter(kind: str) -> Interpreter:
    """The Python that has the harness, for accuracy=`kind`."""
    # In a wheel our package is not called `evaluate`, so Hugging Face's can be installed beside it.
    default = Path(sys.executable) if IS_WHEEL else OWN_INTERPRETER
    path = Path(os.environ.get(INTERPRETER) or default).expanduser()
    if not path.is_file():
        raise bad_input(f"accuracy={kind}: there is no {path}; {HOW_TO_GET_IT}")
    command = [str(path), "-P", "-c", VERSION]
    completed = subprocess.run(
        command, cwd=NOWHERE, env=_variables(), capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise bad_input(f"accuracy={kind}: {path} has no lm-eval; {HOW_TO_GET_IT}")
    version, folder = completed.stdout.splitlines()
    return Interpreter(path, version, Path(folder))


def tasks(entries: list[str]) -> list[Task]:
    """The tasks of accuracy.tasks: names of the harness's own tasks, or files."""
    named_tasks = [_task_of_file(Path(e).expanduser()) if _is_file(e) else Task(e) for e in entries]
    names = [task.name for task in named_tasks]
    for name in names:
        if names.count(name) > 1:
            raise bad_input(f"accuracy.tasks: two tasks are called {name}")
    return named_tasks


def _is_file(entry: str) -> bool:
    return entry.endswith((".yaml", ".yml")) or "/" in entry


class _Loader(yaml.SafeLoader):
    """Reads tags of the harness's own loader, such as !function, as None."""


_Loader.add_multi_constructor("!", lambda *_: None)


def _task_of_file(path: Path) -> Task:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise bad_input(f"accuracy.tasks: {path} cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        fault = " ".join(str(error).split())
        raise bad_input(f"accuracy.tasks: {path} is no YAML ({fault})") from error
    content = content if isinstance(content, dict) else {}
    names = [content.get(key) for key in ("task", "group")]
    name = next((name for name in names if isinstance(name, str)), None)
    if name is None:
        raise bad_input(f"accuracy.tasks: {path} does not name its task: `task: NAME`")
    folder = path.resolve().parent
    return Task(name, str(folder), files_sha256(_files_of_task(folder)))


def _files_of_task(folder: Path) -> list[Path]:
    """The files that may belong to a task: YAML and Python files in its folder, and data files
    that they name."""
    task_files = {path for kind in ("*.yaml", "*.yml", "*.py") for path in folder.glob(kind)}
    text = "\n".join(path.read_text(errors="replace") for path in task_files)
    data_files = {folder / name for name in FILE_NAME.findall(text)}
    return sorted(task_files | {path for path in data_files if path.is_file()})


def _variables() -> dict[str, str]:
    """The harness's environment: without variables that put our packages on its path, and with
    the server's key."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return variables | {
        "OPENAI_API_KEY": os.environ.get(API_KEY, ""),
        "TOKENIZERS_PARALLELISM": "false",
    }


class Harness:
    """The harness's process, started once for all servers."""

    def __init__(
        self,
        path: Path,
        log: Path,
        progress: Callable[[int, int], None],
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.log = log
        command = [str(path), "-P", str(SCRIPT)]
        self.process = Running(
            command, HARNESS_EVENTS, "lm-eval", log, _variables() | dict(variables), NOWHERE
        )
        self.events = self.process.events()
        self.bars = _BarReader(log, progress)

    def load(self, tasks: list[Task]) -> dict[str, str]:
        """Loads the tasks before any server is started. Returns the problems by task."""
        loaded = self._exchange(LoadTasks(tasks, any(not task.folder for task in tasks)))
        assert isinstance(loaded, TasksLoaded)
        if loaded.unknown:
            name, close = next(iter(loaded.unknown.items()))
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise bad_input(f"accuracy.tasks: the harness has no task '{name}'.{hint}")
        return loaded.problems

    def ask(self, request: AskTask) -> None:
        """Runs one task on a server; writes the samples to the request's folder."""
        self._exchange(request)
        self.bars.look()  # the last bar is this task's, not the next one's

    def close(self) -> None:
        self.bars.close()
        self.process.close()

    def _exchange(self, request: LoadTasks | AskTask) -> TasksLoaded | SamplesWritten:
        self.process.send(request)
        event = next(self.events, None)
        if event is None:
            raise self.process.crash()
        if isinstance(event, AskFailed):
            raise environment_failure(f"lm-eval: {event.message} (see {self.log})")
        return event


class _BarReader:
    """Reads the harness's progress from the bars in its log."""

    def __init__(self, log: Path, progress: Callable[[int, int], None]) -> None:
        self.progress = progress
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.file = log.open("rb")
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.ended.set()
        self.thread.join()
        self.file.close()

    def look(self) -> None:
        """Reports the last bar of what was written since the last look."""
        with self.lock:
            counts = PROGRESS.findall(self.file.read())
            if counts:
                self.progress(int(counts[-1][0]), int(counts[-1][1]))

    def _read(self) -> None:
        while not self.ended.wait(SECONDS_BETWEEN_LOOKS):
            self.look()
