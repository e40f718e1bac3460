"""A test run uses caches of its own and leaves the user's alone."""

import os
import subprocess
import sys
from pathlib import Path

from conf.cache import cache_root
from tests.conftest import CACHES, OTHER_CACHES, Run

ASK_LIBRARIES = """
import os
import torch.hub
from datasets import config
from huggingface_hub import constants
from conf.cache import cache_root
print(cache_root(), constants.HF_HUB_CACHE)
print(config.HF_DATASETS_CACHE, torch.hub.get_dir())
"""


def test_the_cache_is_the_runs_own() -> None:
    assert cache_root().is_relative_to(CACHES)
    assert not CACHES.is_relative_to(Path.home() / ".cache")
    assert not set(OTHER_CACHES) & set(os.environ)


def test_processes_that_a_test_starts_inherit_it() -> None:
    result = subprocess.run(
        [sys.executable, "-c", ASK_LIBRARIES], capture_output=True, text=True, check=True
    )
    places = [Path(line) for line in result.stdout.split()]
    assert len(places) == 4
    assert [place for place in places if not place.is_relative_to(CACHES)] == []


def test_a_command_writes_nothing_into_the_home_folder(run_command: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    result = run_command("quantize", "model=tiny", "preflight=only", HOME=str(home))
    assert result.returncode == 0, result.stderr
    assert list(home.rglob("*")) == []
