"""The sandbox under attack. A program passes only if it runs to its end, so each attack is written
to pass where it succeeds."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from evaluate.accuracy.questions import sandbox
from evaluate.accuracy.questions.sandbox import Limits, check_sandbox, passes

SHORT = Limits(wall_seconds=20, cpu_seconds=1)


@pytest.fixture(scope="module", autouse=True)
def needs_namespaces() -> None:
    try:
        check_sandbox()
    except QuantlineError as error:
        if "allows no user namespaces" not in str(error):
            raise
        pytest.skip(str(error))


def test_a_right_answer_passes_and_a_wrong_one_does_not() -> None:
    answer = "import math, re, collections, itertools\ndef add(a, b):\n    return a + b\n"
    assert passes(f"{answer}assert add(2, 3) == 5\nprint('done')")
    assert not passes(f"{answer}assert add(2, 3) == 6")
    assert not passes("def add(a, b:\n")


@pytest.mark.parametrize(
    "early", ["raise SystemExit(0)", "exit(0)", "import os; os._exit(0)", "quit()"]
)
def test_who_leaves_early_has_not_passed(early: str) -> None:
    assert not passes(f"{early}\nassert False")


@pytest.mark.parametrize(
    "endless",
    [
        "while True: pass",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    ],
)
def test_an_endless_loop_ends(endless: str) -> None:
    assert not passes(endless, SHORT)


def test_an_idle_program_ends_with_its_wall_clock() -> None:
    idle = "import time\ntry: time.sleep(600)\nexcept BaseException: time.sleep(600)"
    assert not passes(idle, Limits(wall_seconds=2))


def test_there_are_no_processes_but_threads() -> None:
    assert not passes("import os\nwhile True: os.fork()", SHORT)
    assert not passes("import subprocess, sys\nsubprocess.run([sys.executable, '-V'])")
    assert not passes("import os\nos.execv('/usr/bin/env', ['env'])")
    assert not passes("import ctypes\nassert ctypes.CDLL(None).fork() >= 0")
    threads = "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()"
    assert passes(threads)
    bomb = "import threading, time\nfor _ in range(500):\n"
    bomb += "    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    assert not passes(bomb, SHORT)


def test_home_and_other_files_are_hidden(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    assert not passes(f"open({str(secret)!r})")
    assert not passes(f"import os\nos.listdir({str(Path.cwd())!r})")
    for hidden in ("/etc/passwd", "/proc/self/environ", "/proc/1/root", "/dev/null", "/sys"):
        assert not passes(f"open({hidden!r})"), hidden
    seen = f"import os\nfor path in {[str(path) for path in Path.home().iterdir()]!r}:\n"
    seen += f"    assert not os.path.exists(path) or {sys.base_prefix!r}.startswith(path), path"
    assert passes(seen)
    assert passes("import os\nassert os.listdir() == []\nassert set(os.environ) <= {'LC_CTYPE'}")


def test_the_root_folder_cannot_be_left() -> None:
    leave = "import os\nos.mkdir('a')\nos.chroot('a')\nos.chdir('../../../..')"
    assert not passes(leave)
    mount = "import ctypes\nassert ctypes.CDLL(None).mount(b'x', b'/work', b'tmpfs', 0, None) == 0"
    assert not passes(mount)
    for namespace in (0x10000000, 0x00020000):  # user, mount
        assert not passes(f"import ctypes\nassert ctypes.CDLL(None).unshare({namespace}) == 0")


def test_python_itself_cannot_be_written() -> None:
    for path in ("/usr/quantline-test", f"{sys.base_prefix}/quantline-test", os.__file__):
        assert not passes(f"open({path!r}, 'a')")
    assert not Path(sys.base_prefix, "quantline-test").exists()


@pytest.fixture
def listening() -> Iterator[int]:
    """The port of a server on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_there_is_no_network(listening: int) -> None:
    connect = "import socket\nsocket.create_connection(({host!r}, {port}), 2)"
    socket.create_connection(("127.0.0.1", listening), 2).close()
    assert not passes(connect.format(host="127.0.0.1", port=listening))
    assert not passes(connect.format(host="1.1.1.1", port=53))


def test_memory_files_and_output_are_limited() -> None:
    assert not passes("x = bytearray(4 << 30)")
    assert not passes("x = []\nwhile True: x.append(bytearray(1 << 20))", SHORT)
    assert not passes("open('big', 'wb').write(bytes(64 << 20))")
    many = "import itertools\nfor n in itertools.count(): open(str(n), 'wb').write(bytes(1 << 20))"
    assert not passes(many, SHORT)
    assert passes("for _ in range(100): print('x' * (1 << 20))")
    assert passes("open('small', 'w').write('x')\nassert open('small').read() == 'x'")


def test_a_flooded_pipe_is_no_pass() -> None:
    flood = "import os\nfor number in range(3, 64):\n    try:\n"
    flood += "        while True: os.write(number, b'x' * 4096)\n    except OSError: pass"
    assert not passes(flood, Limits(wall_seconds=2))


def test_a_machine_without_namespaces_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(sandbox, "_unshare", lambda: str(refusing))
    with pytest.raises(QuantlineError, match="Operation not permitted; this machine allows") as no:
        check_sandbox()
    assert no.value.exit_code == 2
    assert str(no.value).startswith("accuracy.run_code=true: ")


def test_a_sandbox_with_a_hole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_hidden", lambda: ["/usr"])
    with pytest.raises(QuantlineError, match="the sandbox is not closed"):
        check_sandbox()
