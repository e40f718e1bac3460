"""Shared parts of the tests: composing, running a command, and models that are made once."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.compose import compose
from conf.schema import EvaluateConfig, ModelConfig, QuantizeConfig
from evaluate.__main__ import COMMAND as EVALUATE
from quantize.__main__ import COMMAND as QUANTIZE

ROOT = Path(__file__).resolve().parent.parent
Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]


@pytest.fixture
def run_command(tmp_path: Path) -> Run:
    """Runs `python -m COMMAND ...` in an empty folder, as a user would."""

    def run(*arguments: str, **variables: str) -> Result:
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=tmp_path,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def quantize_config(*overrides: str) -> QuantizeConfig:
    config = compose(QUANTIZE, list(overrides))
    assert isinstance(config, QuantizeConfig)
    return config


def evaluate_config(*overrides: str) -> EvaluateConfig:
    config = compose(EVALUATE, list(overrides))
    assert isinstance(config, EvaluateConfig)
    return config


@pytest.fixture(scope="session")
def tiny() -> tuple[ModelConfig, Path]:
    """The trained test model: made on first use, then from the cache."""
    from quantize.fetch import fetch

    model = quantize_config("model=tiny").model
    return model, fetch(model)


@pytest.fixture(scope="session")
def tiny_checkpoint(
    tiny: tuple[ModelConfig, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """`tiny`, quantized with the default recipe on a little text."""
    from quantize.pipeline import quantize

    root = tmp_path_factory.mktemp("checkpoints")
    return quantize(
        quantize_config(
            "model=tiny",
            f"output_dir={root}",
            "calibration.samples=8",
            "calibration.length=128",
        )
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from conf.hardware import gpu_names

    if not gpu_names():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="there is no NVIDIA GPU here"))
