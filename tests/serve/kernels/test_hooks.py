"""The oldest and the installed vLLM have every name that our kernels rely on, and a missing one is
found."""

import re
from pathlib import Path

import pytest

from serve.kernels import hooks
from serve.kernels.hooks import HOOKS, Hook, installed, missing
from tests.conftest import ROOT
from tests.serve.kernels.remote_wheel import unpack_part, wheel_address

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


@pytest.mark.network
def test_the_oldest_vllm_has_all_names(tmp_path: Path) -> None:
    """Of its wheel, which has 250 MB, only the modules are fetched."""
    oldest = re.search(r'"vllm>=([\d.]+),', (ROOT / "pyproject.toml").read_text())
    assert oldest is not None
    modules = {f"vllm/{hook.module}.py" for hook in HOOKS}
    try:
        unpack_part(wheel_address("vllm", oldest[1]), modules, tmp_path)
    except OSError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    assert missing(tmp_path / "vllm") == []


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
