"""Installing: which Python, what is printed, and that the locks have wheels for every platform."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT

PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {  # Linux with glibc 2.35, as in Ubuntu 22.04; Debian 12 has 2.36
    "cpu": ("x86_64-manylinux_2_35", "aarch64-manylinux_2_35"),
    "lm-eval": ("x86_64-manylinux_2_35", "aarch64-manylinux_2_35"),
    "cuda": ("x86_64-manylinux_2_35", "aarch64-manylinux_2_35"),
}
# Published as source alone: pure Python, which every platform builds in a second.
SOURCE_ONLY = ("antlr4-python3-runtime", "langdetect", "rouge-score", "sqlitedict", "word2number")
# Intel's OpenMP asks for it on Linux, for GPUs; uv reads what a package asks for from one wheel.
NOT_NEEDED = {"intel-cmplr-lib-ur"}
CPU_TORCH = "torch"  # its CPU builds are in PyTorch's own index, which may be out of reach
INDEX_IS_OUT_OF_REACH = re.compile(r"client error|dns error|timed out|tcp connect|error sending")


def installer() -> ModuleType:
    """locks/environment.py."""
    return load("environment")


def load(name: str) -> ModuleType:
    """A module of locks/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "locks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("version", [(3, 8, 18), (3, 10, 13), (3, 14, 0), (4, 0, 0)])
def test_another_python_is_refused_in_one_sentence(version: tuple[int, ...]) -> None:
    with pytest.raises(SystemExit, match=r"^error: Quantline needs Python 3.11, 3.12 or 3.13"):
        installer().check_python(version)


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 12, 9), (3, 13, 1)])
def test_every_supported_python_is_taken(version: tuple[int, ...]) -> None:
    installer().check_python(version)


def test_the_package_says_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    assert "3.11, 3.12 or 3.13" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("works", "chosen"), [(["python3.12", "python3"], "python3.12"), ([], "python3")]
)
def test_make_picks_a_python_that_works(tmp_path: Path, works: list[str], chosen: str) -> None:
    """As where python3.11 is a command that fails, or is none at all."""
    for name in ("python3.11", "python3.12", "python3.13", "python3", "python"):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\nexit {0 if name in works else 127}\n")
        script.chmod(0o755)
    (tmp_path / "Makefile").write_text(
        (ROOT / "Makefile").read_text() + "\nwhich:\n\t@echo $(PYTHON)\n"
    )
    result = subprocess.run(
        ["make", "-s", "which"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == chosen


SAYS_MUCH = "import sys; [print(f'+ package{n}', file=sys.stderr) for n in range(200)]"


def quietly(environment: ModuleType, script: str) -> None:
    progress = environment.Progress("lm-eval", Path("/nowhere"))
    environment.run_quietly([sys.executable, "-c", script], {}, progress)


def test_an_installation_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    quietly(installer(), SAYS_MUCH)
    shown = capfd.readouterr()
    assert shown.err == ""
    assert len(shown.out.splitlines()) <= 3
    assert re.search(r"installed locks/lm-eval.txt: \d+ packages, \d+ s\n$", shown.out)


def test_what_a_failed_installer_said_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        quietly(installer(), SAYS_MUCH + "; sys.exit(3)")
    assert "+ package0\n" in str(error.value)
    assert str(error.value).endswith("failed with 3")
    assert "could not install" in capfd.readouterr().out


def test_a_terminal_gets_one_line_that_is_redrawn(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    environment = installer()
    environment.SECONDS_BETWEEN_LOOKS = 0.01
    quietly(environment, SAYS_MUCH + "; import time; time.sleep(1)")
    shown = capfd.readouterr().out
    assert shown.count("\r") > 2
    assert shown.count("\n") == 1


@pytest.mark.network
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("lock", "platform"), [(lock, place) for lock, places in PLATFORMS.items() for place in places]
)
def test_the_locks_install(lock: str, platform: str, python: str, tmp_path: Path) -> None:
    """A dry run of the installer, without building: every package has a wheel for the platform,
    and what the packages ask for there is in the lock."""
    environment = installer()
    _, variables = environment.settings_for_uv(lock)
    left_out = SOURCE_ONLY if lock == "cuda" else (*SOURCE_ONLY, CPU_TORCH)
    locks = [lock] if lock == environment.LM_EVAL else [lock, environment.DEV]
    lines = [line for name in locks for line in lines_without(left_out, f"{name}.txt")]
    (tmp_path / "lock.txt").write_text("\n".join(lines))
    overrides = lines_without(left_out, f"overrides-{lock}.txt")
    overrides += [f"{name} ; sys_platform == 'never'" for name in left_out]
    (tmp_path / "overrides.txt").write_text("\n".join(overrides))
    command = [str(environment.VENV / "bin" / "uv"), "pip", "install", "--dry-run"]
    command += ["--only-binary", ":all:", "--target", str(tmp_path / "target")]
    command += ["--python-version", python, "--python-platform", platform]
    command += ["--override", str(tmp_path / "overrides.txt")]
    result = subprocess.run(
        [*command, "-r", str(tmp_path / "lock.txt")],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode and INDEX_IS_OUT_OF_REACH.search(result.stderr):
        pytest.skip("the package index cannot be reached")
    assert result.returncode == 0, result.stderr
    installed = re.findall(r"^ \+ ([\w.-]+)==", result.stderr, flags=re.MULTILINE)
    assert len(installed) > 50
    expected = {package for name in locks for package in locked(name)}
    assert set(installed) <= {*expected, *NOT_NEEDED}, (
        "what a package needs there is not in the lock"
    )


def test_what_launchers_need_changes_nothing_that_users_have() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        line
        for line in (ROOT / "locks" / "cluster.in").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert asked == project["optional-dependencies"]["cluster"]
    packages = set(locked("cluster"))
    assert {"ray", "submitit"} <= packages
    assert not packages & (set(locked("cpu")) | set(locked("cuda")))
    excluded = re.findall(
        r"^# ([\w.-]+)$", (ROOT / "locks" / "cluster.txt").read_text(), flags=re.MULTILINE
    )
    for device in ("cpu", "cuda"):  # so that --no-deps leaves nothing out
        assert set(excluded) <= set(locked(device))


def test_test_tools_are_apart_from_what_users_install() -> None:
    tools = set(locked("dev"))
    assert {"pytest", "ruff", "mypy", "playwright", "scipy"} <= tools
    for device in ("cpu", "cuda"):
        assert not tools & set(locked(device))


def lines_without(names: tuple[str, ...], file: str) -> list[str]:
    """The lines of a file in locks/ without these packages and their hashes."""
    path = ROOT / "locks" / file
    text = path.read_text() if path.is_file() else ""
    pins = "|".join(map(re.escape, names))
    return re.sub(rf"^({pins})==(.*\\\n)*.*\n", "", text, flags=re.MULTILINE).splitlines()


def locked(name: str) -> dict[str, str]:
    """The packages of a lock and their versions."""
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", text, flags=re.MULTILINE))
