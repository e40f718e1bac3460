"""Models below a folder that was named by mistake."""

from pathlib import Path

from conf.model_folders import models_below


def made(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")


def test_models_below_are_named(tmp_path: Path) -> None:
    assert models_below(tmp_path) == ""
    assert models_below(tmp_path / "nowhere") == ""
    made(tmp_path / "tiny" / "fp8")
    made(tmp_path / ".hidden" / "w8")
    made(tmp_path / "a" / "b" / "too_deep")
    assert models_below(tmp_path) == f"; below it are {tmp_path}/tiny/fp8"
    for number in range(4):
        made(tmp_path / f"w{number}")
    names = ", ".join(f"{tmp_path}/w{number}" for number in range(3))
    assert models_below(tmp_path) == f"; below it are {names} and 2 more"
