"""The installed vLLM has every name that our kernels rely on, and a missing one is found."""

from pathlib import Path

import pytest

from serve.kernels import hooks
from serve.kernels.hooks import Hook, installed, missing

SOURCE = """
from elsewhere import Other
LISTED = {}
COUNT: int = 3
if True:
    def inner(x): ...
class Kernel:
    field: int
    def apply(self, layer, *, bias=None): ...
"""


def test_the_installed_vllm_has_all_names() -> None:
    assert missing(installed()) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "made.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("hook", "fault"),
    [
        (Hook("made", "LISTED"), None),
        (Hook("made", "COUNT"), None),
        (Hook("made", "Other"), None),
        (Hook("made", "inner", ("x",)), None),
        (Hook("made", "Kernel.field"), None),
        (Hook("made", "Kernel.apply", ("layer", "bias")), None),
        (Hook("gone", "Kernel"), "there is no such file"),
        (Hook("made", "Missing"), "there is no Missing"),
        (Hook("made", "Kernel.missing"), "there is no missing"),
        (Hook("made", "Kernel.apply", ("layer", "scale")), "there is no parameter scale"),
    ],
)
def test_what_is_missing_is_named(
    hook: Hook, fault: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "HOOKS", (hook,))
    assert missing(folder) == ([f"{hook}: {fault}"] if fault else [])
