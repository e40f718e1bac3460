"""Serving: the command that is printed is one that works."""

import shlex
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.models import cached_folder
from serve.engine.launch import model_folder
from tests.conftest import Run, quantize_config


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
