"""vLLM finds our plugin also where the checkout is not installed."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf import ROOT
from serve.engine import launch
from serve.kernels import installed
from serve.kernels.installed import GROUP, NAME, TARGET, plugin_path

FIND = f"""
from importlib.metadata import entry_points
(point,) = [p for p in entry_points(group="{GROUP}") if p.name == "{NAME}"]
print(point.load().__module__, point.value)
"""


@pytest.fixture
def not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    monkeypatch.setattr(installed, "is_installed", lambda: False)
    monkeypatch.setattr(launch, "on_cpu", lambda: False)
    plugin_path.cache_clear()
    yield
    plugin_path.cache_clear()  # other tests start engines, too


def test_the_name_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][GROUP] == {NAME: TARGET}


def test_a_process_with_that_path_finds_it(not_installed: None, tmp_path: Path) -> None:
    variables = launch.environment()
    paths = variables["PYTHONPATH"].split(os.pathsep)
    assert paths[-1] == str(tmp_path / "plugin")
    assert str(ROOT) in paths
    # Without site-packages, where an older or newer Quantline may be.
    result = subprocess.run(
        [sys.executable, "-S", "-c", FIND],
        env={"PYTHONPATH": variables["PYTHONPATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split() == ["quantline", TARGET], result.stderr


def test_the_path_is_not_longer_each_time(
    not_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = launch.environment()["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", once)
    assert launch.environment()["PYTHONPATH"] == once


def test_nothing_is_added_where_it_is_installed(
    not_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(installed, "is_installed", lambda: True)
    plugin_path.cache_clear()
    assert "PYTHONPATH" not in launch.environment()


def test_a_cpu_needs_it_for_formats_that_vllm_does_not_have(
    not_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "on_cpu", lambda: True)
    assert str(ROOT) in launch.environment()["PYTHONPATH"].split(os.pathsep)
