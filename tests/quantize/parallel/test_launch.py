"""Processes that run together: what they give, and how they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conf.errors import ENVIRONMENT_FAILURE, QuantlineError
from conf.schema.commands import QuantizeConfig
from conf.schema.model import ModelConfig
from quantize.checkpoint.manifest import FILE
from quantize.parallel import launch
from quantize.pipeline import quantize
from tests.conftest import quantize_config
from tests.quantize.parallel import together

Tiny = tuple[ModelConfig, Path]
TEXT = ("calibration.samples=12", "calibration.length=64", "batch_size=2")


def config_for(folder: Path, *options: str) -> QuantizeConfig:
    return quantize_config("model=tiny", *TEXT, f"output_dir={folder}", *options)


def test_every_rank_works_and_they_exchange_objects(tmp_path: Path) -> None:
    launch.run_in_ranks(config_for(tmp_path, "gpus=2"), together.note_rank)
    notes = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert notes == {"rank0": "3 of 2", "rank1": "3 of 2"}


def test_a_failure_of_one_rank_ends_all_with_its_own_message(tmp_path: Path) -> None:
    with pytest.raises(QuantlineError, match=r"^recipe=mine: rank 1 does not like it$") as error:
        launch.run_in_ranks(config_for(tmp_path, "gpus=2"), together.second_fails)
    assert error.value.exit_code == 2


def test_a_killed_rank_ends_all_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(QuantlineError, match=r"process 1 .* ended with SIGKILL") as error:
        launch.run_in_ranks(config_for(tmp_path, "gpus=2"), together.second_is_killed)
    assert error.value.exit_code == ENVIRONMENT_FAILURE


@pytest.mark.slow
def test_two_processes_fail_and_one_goes_on_with_the_same_bytes(tiny: Tiny, tmp_path: Path) -> None:
    """Two runs of the command, which fail and go on: gpus=2 gives what shards=2 gives."""
    options = ("recipe=w8a8_smooth_gptq", "gpus=2")
    launch.run_in_ranks(config_for(tmp_path / "two", *options), quantize)
    failing = together.second_fails_in_the_second_layer
    with pytest.raises(QuantlineError, match="rank 1 has no memory left") as error:
        launch.run_in_ranks(config_for(tmp_path / "one", *options), failing)
    assert error.value.exit_code == ENVIRONMENT_FAILURE
    assert not (tmp_path / "one/tiny/w8a8_smooth_gptq").exists()
    folder = quantize(config_for(tmp_path / "one", options[0], "shards=2"))
    assert folder is not None
    assert json.loads((folder / FILE).read_text())["resumed_layers"] == 1
    weights = "tiny/w8a8_smooth_gptq/model.safetensors"
    assert (tmp_path / "one" / weights).read_bytes() == (tmp_path / "two" / weights).read_bytes()


@pytest.mark.slow
def test_torchrun_gives_the_same_bytes_as_one_process(tiny: Tiny, tmp_path: Path) -> None:
    options = ["model=tiny", "recipe=w4a16_gptq", *TEXT, f"output_dir={tmp_path / 'two'}"]
    # Alone on this machine: torchrun's usual port is the same for all runs.
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = subprocess.run(
        [*start, "--nproc-per-node", "2", "-m", "quantize", *options],
        env=os.environ | {"PYTHONPATH": str(Path(launch.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    folder = quantize(config_for(tmp_path / "one", "recipe=w4a16_gptq", "shards=2"))
    assert folder is not None
    assert ended.stdout.splitlines() == [str(tmp_path / "two/tiny/w4a16_gptq")]
    assert ended.stderr.count("it says: ") == 1
    two = tmp_path / "two/tiny/w4a16_gptq/model.safetensors"
    assert (folder / "model.safetensors").read_bytes() == two.read_bytes()
