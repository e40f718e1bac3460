"""What is recorded of the command line and of options."""

import subprocess
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.schema.load import EngineConfig, GpuConfig
from evaluate.measure import environment
from evaluate.measure.environment import command, commit, engine_options


def test_a_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["/usr/bin/python3", "-m", "evaluate", "recipes=[a,b]", "scenario.base.output_tokens=6"]
    typed = "python -m evaluate 'recipes=[a,b]' scenario.base.output_tokens=6"
    monkeypatch.delenv("QUANTLINE_RECIPES", raising=False)
    assert command(words) == typed
    monkeypatch.setenv("QUANTLINE_RECIPES", "our team")
    assert command(words) == f"QUANTLINE_RECIPES='our team' {typed}"
    monkeypatch.delenv("QUANTLINE_RECIPES")
    script = ["/usr/bin/python3", "/usr/bin/quantline", "evaluate", "model=tiny"]
    assert command(script) == "quantline evaluate model=tiny"


@pytest.mark.parametrize(
    "option",
    [
        "engine.hf_token=hf_abc",
        "engine.api_key=abc",
        "engine.auth_tokens=[abc]",
        "engine.hf_overrides={api_key:abc}",
    ],
)
def test_a_secret_is_not_kept(option: str) -> None:
    assert command(["python", "-m", "evaluate", option]) == ""


def test_options_are_kept_without_secrets() -> None:
    engine = EngineConfig(kind="transformers", options={"token": "hf_abc", "max_tokens": 5})
    assert engine_options(engine).keys() == {"dtype", "max_tokens"}


def test_results_do_not_change_the_code_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        found = subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words], capture_output=True, text=True, check=True
        )
        return found.stdout.strip()

    code, rows = tmp_path / "evaluate" / "environment.py", tmp_path / "results.jsonl"
    code.parent.mkdir()
    code.write_text("one")
    rows.write_text("one")
    monkeypatch.setattr(environment, "__file__", str(code))
    assert commit.__wrapped__() == ""
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    rows.write_text("two")
    assert commit.__wrapped__() == git("rev-parse", "HEAD")
    code.write_text("two")
    assert commit.__wrapped__() == git("rev-parse", "HEAD") + "-dirty"


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit.__wrapped__() == ""


def test_runs_here_are_not_said_to_be_of_a_gpu_that_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = GpuConfig(name="NVIDIA H200")
    monkeypatch.setattr(environment, "gpu_names", list)
    with pytest.raises(QuantlineError, match="NVIDIA H200: there is no NVIDIA GPU here"):
        environment.environment(asked, EngineConfig())
    monkeypatch.setattr(environment, "gpu_names", lambda: ["NVIDIA L4"])
    assert environment.environment(asked, EngineConfig()).device == "NVIDIA L4"
