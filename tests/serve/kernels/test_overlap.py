"""Kernels of compiled graphs that overlap."""

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serve.kernels import overlap
from serve.kernels.overlap import INDUCTOR_OPTION
from serve.kernels.plugin import complete

PRODUCTS = Path(overlap.__file__).parent / "products"
SOURCES = [
    path for path in sorted(PRODUCTS.rglob("*.py")) if "launch_dependents" in path.read_text()
]


def completed(kernels: str | list[str], options: dict[str, Any] | None = None) -> Any:
    config = SimpleNamespace(
        additional_config={"quantline": {"kernels": kernels}},
        compilation_config=SimpleNamespace(inductor_compile_config=options or {}),
    )
    complete(config)
    return config


@pytest.mark.parametrize(
    ("kernels", "overlaps"),
    [(["overlap"], True), (["one_token", "overlap"], True), ("auto", False), ("vllm", False)],
)
def test_inductor_is_told_where_the_family_is_chosen(
    kernels: str | list[str], overlaps: bool
) -> None:
    options = completed(kernels, {"theirs": 1}).compilation_config.inductor_compile_config
    assert options == {"theirs": 1} | ({INDUCTOR_OPTION: True} if overlaps else {})


def test_a_value_of_the_user_stays() -> None:
    config = completed(["overlap"], {INDUCTOR_OPTION: False})
    assert config.compilation_config.inductor_compile_config == {INDUCTOR_OPTION: False}


def test_inductor_has_the_option() -> None:
    from torch._inductor import config

    with config.patch({INDUCTOR_OPTION: True}):
        assert config.triton.enable_pdl


def test_an_inductor_without_the_option_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(overlap, "INDUCTOR_OPTION", "triton.there_is_no_such_option")
    with caplog.at_level(logging.INFO, "vllm.quantline"):
        config = completed(["overlap"])
    assert config.compilation_config.inductor_compile_config == {}
    assert "do not overlap" in caplog.text


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_next_kernel_begins_after_the_wait(path: Path) -> None:
    """A kernel of Inductor reads what the one before the last wrote, without waiting: it must have
    ended by then."""
    calls = re.findall(
        r"griddepcontrol\.(wait|launch_dependents);|gdc_(wait|launch_dependents)\(\)",
        path.read_text(),
    )
    found = [instruction or call for instruction, call in calls]
    assert found[::2] == ["wait"] * (len(found) // 2)
    assert found[1::2] == ["launch_dependents"] * (len(found) // 2)


def test_every_kernel_that_overlaps_is_checked() -> None:
    assert {path.stem for path in SOURCES} >= {
        "few_tokens", "instructions", "sparse_instructions", "vptq_instructions",
    }  # fmt: skip
