"""A message stays one line, whatever a name holds."""

from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.escaping import escaped
from conf.terminal import say
from evaluate.measure.targets import targets
from tests.conftest import Run, evaluate_config

ODD = "a\nb\x1b[31m"


def test_control_characters_are_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert escaped("ä\tb\r\n\x1b[31m\x7f\x85\u2028\u202e") == (
        r"ä\tb\r\n\x1b[31m\x7f\x85\u2028\u202e"
    )
    say(f"{ODD}: loading")
    assert capsys.readouterr().err == "a\\nb\\x1b[31m: loading\n"


@pytest.mark.parametrize(
    "words",
    [
        ("quantize", f"recipe={ODD}"),
        ("quantize", f"recipe='{ODD}'"),
        ("quantize", f"--{ODD}"),
        ("quantize", f"output_dir='/etc/passwd/{ODD}'"),
        ("quantize.verify", ODD),
        ("evaluate", "model=tiny", f"results='/etc/passwd/{ODD}'"),
        ("evaluate", "model=tiny", f"checkpoints=['{ODD}']"),
        ("evaluate.report", f"results=['{ODD}']"),
        ("serve", f"checkpoint='{ODD}'"),
        ("quantline", ODD),
    ],
)
def test_an_error_is_one_line(words: tuple[str, ...], command_here: Run) -> None:
    result = command_here(*words)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert r"a\nb\x1b[31m" in result.stderr
    assert "\x1b" not in result.stderr


def test_a_checkpoint_that_no_table_could_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tiny" / "a\x1bb"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    config = evaluate_config("model.path=/models/mine", f"checkpoints=['{folder}']")
    monkeypatch.setattr("evaluate.measure.targets.model_folder", lambda _: tmp_path)
    with pytest.raises(QuantlineError, match="control characters") as caught:
        targets(config)
    assert caught.value.exit_code == 2
