"""Why a process ended, by its exit status, its log and the kernel's count of kills."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conf.process import endings
from conf.process.endings import ending, oom_kills, reason_in

LOG = "INFO loading\nValueError: an old one that was handled\nINFO decoding\nINFO 3 requests\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "was ended by SIGKILL; the system may have been out of memory; its log ends with"),
        (137, "was ended by SIGKILL; the system may have been out of memory; its log ends with"),
        (-11, "was ended by SIGSEGV; its log ends with: INFO decoding / INFO 3 requests"),
        (1, "stopped with 1: ValueError: an old one"),
        (3, "stopped with 3: ValueError: an old one"),
    ],
)
def test_a_signal_is_told_from_an_error(code: int, words: str) -> None:
    assert ending(code, LOG, oom_kills()).startswith(words)


SERVER_LOG = """\
(APIServer pid=7) WARNING 11-16 04:23:05 [utils.py:255] errors like `OSError: [Errno 24] Too many`
(EngineCore pid=8) INFO 11-16 04:27:40 [core.py:7] decoding
(APIServer pid=7) WARNING 11-16 04:27:47 [core_client.py:817] engine core exited unexpectedly
(APIServer pid=7) ERROR 11-16 04:27:47 [async_llm.py:906] EngineDeadError: See root cause above
"""


def test_a_warning_is_no_reason() -> None:
    assert reason_in(SERVER_LOG.splitlines()[0] + "\nValueError: it broke\nend\n") == (
        "ValueError: it broke"
    )
    assert reason_in(SERVER_LOG).endswith("EngineDeadError: See root cause above")


def test_an_empty_log_is_said() -> None:
    assert ending(-15, "\n", 0) == "was ended by SIGTERM; its log is empty"


@pytest.mark.parametrize(
    ("groups", "file", "content"),
    [
        ("0::/app\n", "app/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("0::/\n", "memory.events", "oom_kill 2\n"),
        ("4:memory:/app\n3:cpu:/\n", "memory/app/memory.oom_control", "under_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_for_lack_of_memory_are_counted(
    groups: str, file: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup").write_text(groups)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content)
    monkeypatch.setattr(endings, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(endings, "MOUNT", tmp_path)
    assert oom_kills() == 2
    assert "SIGKILL: the system was out of memory; its log" in ending(-9, LOG, 1)
    assert "may have been" in ending(-9, LOG, 2)


def test_nothing_is_counted_where_the_kernel_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "CGROUPS", tmp_path / "none")
    assert oom_kills() == 0


def test_a_child_that_a_shell_started_is_known_by_its_code() -> None:
    code = subprocess.run(["sh", "-c", f"{sys.executable} -c 'import os; os.abort()'"]).returncode
    number = -code if code < 0 else code - 128
    assert number == signal.SIGABRT
    assert ending(code, "", 0).startswith("was ended by SIGABRT")


def test_the_fault_that_pydantic_names_below_its_error_is_quoted() -> None:
    log = """pydantic_core.ValidationError: 1 validation error for SchedulerConfig
  Value error, max_num_batched_tokens (20) must be at least max_num_seqs. [type=value_error, x]
    For further information visit the documentation
"""
    assert reason_in(log) == (
        "pydantic_core.ValidationError: 1 validation error for SchedulerConfig: "
        "max_num_batched_tokens (20) must be at least max_num_seqs."
    )
