"""Kernels of compiled graphs that overlap."""

import logging
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from serve.kernels import overlap
from serve.kernels.hooks import installed
from serve.kernels.overlap import BACKEND, COMPILED_BY_VLLM, INDUCTOR_OPTION, INTERFACE
from serve.kernels.plugin import complete
from serve.kernels.settings import Settings

PRODUCTS = Path(overlap.__file__).parent / "products"
SOURCES = [
    path for path in sorted(PRODUCTS.rglob("*.py")) if "launch_dependents" in path.read_text()
]


def finished_config(
    families: list[str] | None, speculative_config: object = None, **compilation: Any
) -> Any:
    """A config as a process that compiles gets it; without our entry where there are no
    families."""
    entries = {} if families is None else {"quantline": Settings(tuple(families)).entry}
    fields = {"mode": COMPILED_BY_VLLM, "compile_sizes": [1], "cudagraph_capture_sizes": [1, 2]}
    return SimpleNamespace(
        additional_config=entries,
        compilation_config=SimpleNamespace(**fields | compilation),
        speculative_config=speculative_config,
    )


def completed(
    kernels: str | list[str],
    options: dict[str, Any] | None = None,
    speculative_config: object = None,
    **compilation: Any,
) -> Any:
    fields = {"mode": COMPILED_BY_VLLM, "compile_sizes": [], "cudagraph_capture_sizes": [1, 2, 4]}
    config = SimpleNamespace(
        additional_config={"quantline": {"kernels": kernels}},
        compilation_config=SimpleNamespace(
            inductor_compile_config=options or {}, **fields | compilation
        ),
        speculative_config=speculative_config,
    )
    complete(config)
    return config


@pytest.mark.parametrize(
    ("kernels", "overlaps"),
    [
        (["overlap"], True),
        (["overlap", "one_token_overlap"], True),
        (["one_token", "one_token_overlap"], False),
        ("auto", False),
        ("vllm", False),
    ],
)
def test_inductor_is_told_where_the_family_is_chosen(
    kernels: str | list[str], overlaps: bool
) -> None:
    options = completed(kernels, {"theirs": 1}).compilation_config.inductor_compile_config
    assert options == {"theirs": 1} | ({INDUCTOR_OPTION: True} if overlaps else {})


@pytest.mark.parametrize(
    ("kernels", "given", "sizes"),
    [
        (["one_token_overlap"], {}, [1]),
        (["one_token_overlap"], {"compile_sizes": None}, [1]),
        (["one_token_overlap"], {"compile_sizes": [8, 1]}, [1, 8]),
        (["one_token_overlap"], {"cudagraph_capture_sizes": []}, []),
        (["one_token_overlap"], {"cudagraph_capture_sizes": [2, 4]}, []),
        (["one_token_overlap"], {"compile_mm_encoder": True}, []),
        (["one_token_overlap"], {"mode": 0}, []),
        (["one_token_overlap"], {"speculative_config": object()}, []),
        (["overlap", "one_token_overlap"], {}, []),
        ("auto", {}, []),
    ],
)
def test_one_token_has_graphs_of_its_own_where_they_can_run(
    kernels: str | list[str],
    given: dict[str, Any],
    sizes: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "vllm.quantline"):
        config = completed(kernels, **given)
    assert config.compilation_config.compile_sizes == sizes
    assert ("do not overlap" in caplog.text) == (kernels == ["one_token_overlap"] and not sizes)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> tuple[type[Any], list[dict[str, Any]]]:
    """vLLM's two modules, as far as we hook into them: a backend that compiles for all sizes, for
    one token, and for eight."""
    seen: list[dict[str, Any]] = []
    interface, backend = ModuleType(INTERFACE), ModuleType(BACKEND)

    def set_inductor_config(config: dict[str, Any], compile_range: Any) -> None:
        if compile_range.start == compile_range.end:
            config["max_autotune"] = True

    interface.set_inductor_config = set_inductor_config  # type: ignore[attr-defined]

    class PiecewiseBackend:
        def __init__(
            self, families: list[str] | None, inner: list[str] | None = None, **given: Any
        ) -> None:
            self.vllm_config = finished_config(families, **given)
            self.inner = inner
            self.compile_all_ranges()

        def compile_all_ranges(self) -> None:
            if self.inner is not None:
                PiecewiseBackend(self.inner)
            for first, last in ((1, 8192), (1, 1), (8, 8)):
                config: dict[str, Any] = {"theirs": first}
                interface.set_inductor_config(config, SimpleNamespace(start=first, end=last))
                seen.append(config)

    backend.PiecewiseBackend = PiecewiseBackend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, INTERFACE, interface)
    monkeypatch.setitem(sys.modules, BACKEND, backend)
    for _ in range(2):  # vLLM calls a plugin in each process, sometimes twice
        overlap.register()
    return PiecewiseBackend, seen


@pytest.mark.parametrize(
    "families",
    [["one_token_overlap"], ["one_token"], ["overlap"], ["overlap", "one_token_overlap"], None],
)
def test_only_the_graphs_of_one_token_get_the_option(
    families: list[str] | None, compiler: tuple[type[Any], list[dict[str, Any]]]
) -> None:
    backend, seen = compiler
    backend(families)
    every, eight = {"theirs": 1}, {"theirs": 8, "max_autotune": True}
    tuned = every | {"max_autotune": True}
    untuned = every | {INDUCTOR_OPTION: True}
    assert seen == [every, untuned if families == ["one_token_overlap"] else tuned, eight]
    backend(["one_token"])
    assert seen[3:] == [every, tuned, eight], "another engine of the same process"


@pytest.mark.parametrize(
    "given",
    [
        {"speculative_config": object()},
        {"cudagraph_capture_sizes": [2, 4]},
        {"compile_mm_encoder": True},
    ],
)
def test_a_users_own_size_is_compiled_as_vllm_does_where_kernels_cannot_overlap(
    given: dict[str, Any], compiler: tuple[type[Any], list[dict[str, Any]]]
) -> None:
    backend, seen = compiler
    backend(["one_token_overlap"], compile_sizes=[1], **given)
    assert seen[1] == {"theirs": 1, "max_autotune": True}


def test_an_engine_that_is_compiled_within_another_changes_nothing_of_it(
    compiler: tuple[type[Any], list[dict[str, Any]]],
) -> None:
    backend, seen = compiler
    backend(["one_token_overlap"], inner=["one_token"])
    assert seen[1] == {"theirs": 1, "max_autotune": True}
    assert seen[4] == {"theirs": 1, INDUCTOR_OPTION: True}


def test_a_vllm_without_these_names_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (INTERFACE, BACKEND):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with caplog.at_level(logging.WARNING, "vllm.quantline"):
        overlap.register()
    assert "set_inductor_config" in caplog.text
    assert "PiecewiseBackend" in caplog.text


def test_the_mode_is_vllms() -> None:
    """Read from its source: importing it takes seconds."""
    source = (installed() / "config" / "compilation.py").read_text()
    assert f"    VLLM_COMPILE = {COMPILED_BY_VLLM}\n" in source


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
