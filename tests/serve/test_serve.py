"""Serving: the command that is printed is one that works."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel, PositiveInt
from vllm.exceptions import VLLMValidationError

from conf.errors import QuantlineError
from conf.models import cached_folder
from serve.ask import vllm_errors
from serve.engine.launch import model_folder
from tests.conftest import Run, quantize_config

Call = Callable[[], object]


def test_options_reach_the_servers_command_line(tiny_checkpoint: Path, command_here: Run) -> None:
    result = command_here(
        "serve",
        f"checkpoint={tiny_checkpoint}",
        "dry_run=true",
        "+engine.options.enable_prefix_caching=false",
        "+engine.options.speculative_config={method: ngram}",
    )
    words = shlex.split(result.stdout)
    assert "--no-enable-prefix-caching" in words
    assert words[words.index("--speculative-config") + 1] == '{"method": "ngram"}'
    assert words[words.index("--served-model-name") + 1] == "tiny"


def test_another_host_needs_a_key(tiny_checkpoint: Path, command_here: Run) -> None:
    arguments = ("serve", f"checkpoint={tiny_checkpoint}", "host=0.0.0.0", "dry_run=true")
    refused = command_here(*arguments)
    assert refused.returncode == 2
    assert "VLLM_API_KEY" in refused.stderr
    allowed = command_here(*arguments, VLLM_API_KEY="secret-key")
    assert allowed.returncode == 0
    assert "secret-key" not in allowed.stdout + allowed.stderr


def test_no_checkpoint_says_how_to_make_one(command_here: Run) -> None:
    result = command_here("serve", "model=tiny")
    assert result.returncode == 2
    assert "python -m quantize model=tiny" in result.stderr


def test_a_missing_original_is_made_by_quantize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    model = quantize_config("model=tiny", "model.weights=random").model
    assert model_folder(model) == cached_folder(model)
    assert (cached_folder(model) / "model.safetensors").is_file()
    with pytest.raises(QuantlineError) as error:
        model_folder(quantize_config("model.path=/nowhere").model)
    assert error.value.exit_code == 2
    assert "there is no folder /nowhere" in str(error.value)


class Settings(BaseModel):
    length: PositiveInt


def too_long() -> None:
    raise VLLMValidationError("the prompt is too long")


def dead() -> None:
    raise RuntimeError("the engine core failed")


@pytest.mark.parametrize(
    ("fail", "exit_code", "message"),
    [
        (too_long, 2, "prompt=x: the prompt is too long"),
        (lambda: Settings(length=-1), 2, "prompt=x: length: Input should be greater than 0"),
        (dead, 3, "prompt=x: the engine core failed"),
    ],
)
def test_an_error_of_vllm_is_one_message(fail: Call, exit_code: int, message: str) -> None:
    with pytest.raises(QuantlineError) as error, vllm_errors("prompt=x"):
        fail()
    assert (error.value.exit_code, str(error.value)) == (exit_code, message)


def test_a_prompt_that_is_too_long_is_refused_before_vllm_loads(
    tiny_checkpoint: Path, command_here: Run
) -> None:
    prompt = f"prompt={'word ' * 3000}"
    result = command_here("serve", f"checkpoint={tiny_checkpoint}", prompt)
    assert result.returncode == 2
    assert "and engine.max_model_len is 1024, answer included" in result.stderr
    assert "loading in vLLM" not in result.stderr
