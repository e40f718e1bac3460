"""The Python API: arguments, errors, and that it leaves the caller's process as it was."""

import importlib
import inspect
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

import quantline
from conf.compose import compose
from conf.errors import QuantlineError
from conf.override_text import value_text
from conf.schema.commands import EvaluateConfig, QuantizeConfig
from quantize.command import COMMAND as QUANTIZE
from quantline import evaluate, quantize, recommend
from tests.conftest import ROOT
from tests.evaluate.report.made import Cell, runs, write
from tests.test_imports import HEAVY


def test_importing_it_is_quick_and_hides_nothing() -> None:
    """The package alone imports none of ours; a function imports nothing heavy."""
    script = (
        "import sys, quantline\n"
        "print(sorted({'conf', 'quantize', 'evaluate', 'serve', 'hydra'} & set(sys.modules)))\n"
        "from quantline import quantize, evaluate, recommend\n"
        "print(quantize.__module__, evaluate.__module__, recommend.__module__)\n"
        f"print(sorted(set({sorted(HEAVY - {'numpy'})}) & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["[]", " ".join(["quantline.api"] * 3), "[]"]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("no_such_package.core", "error: the package no_such_package is not installed"),
        ("json.nothing", "error: the installed json has no json.nothing: another version"),
    ],
)
def test_a_package_that_is_not_installed_is_one_line(
    module: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after `pip install --no-deps` of the wheel."""
    missing = ModuleNotFoundError(f"No module named '{module}'", name=module)
    monkeypatch.setattr("runpy.run_module", Mock(side_effect=missing))
    monkeypatch.setattr("sys.argv", ["quantline", "quantize"])
    with pytest.raises(SystemExit) as ended:
        quantline.main()
    assert ended.value.code == 3
    assert said in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["quantline", "quantize"])
    monkeypatch.setenv("QUANTLINE_DEBUG", "1")
    with pytest.raises(ModuleNotFoundError):
        quantline.main()


def test_a_fault_of_our_own_imports_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ModuleNotFoundError("No module named 'conf.nothing'", name="conf.nothing")
    monkeypatch.setattr("runpy.run_module", Mock(side_effect=ours))
    monkeypatch.setattr("sys.argv", ["quantline", "quantize"])
    with pytest.raises(ModuleNotFoundError):
        quantline.main()


def test_every_name_exists_and_others_do_not() -> None:
    for name in quantline.__all__:
        assert getattr(quantline, name) is getattr(importlib.import_module("quantline.api"), name)
    with pytest.raises(AttributeError, match="has no attribute 'serve'"):
        _ = quantline.serve


def test_another_package_of_the_name_is_told(tmp_path: Path) -> None:
    """As Hugging Face's `evaluate`, imported before."""
    (tmp_path / "evaluate.py").write_text("")
    script = "import evaluate, quantline; quantline.recommend"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "another module called evaluate was imported before quantline's" in result.stderr


@pytest.mark.parametrize("function", [quantize, evaluate, recommend])
def test_every_argument_is_a_typed_keyword(function) -> None:
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.annotation is not inspect.Parameter.empty
    assert signature.return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: quantize(recipe="w8a8_smoth_gptq"), "Did you mean w8a8_smooth_gptq?"),
        (lambda: quantize(samples=0), "calibration.samples=0: must be at least 1"),
        (lambda: quantize(overrides=["recipe=["]), "write NAME=VALUE"),
        (lambda: quantize(overrides=["modle=x"]), "Did you mean model?"),
        (lambda: quantize(model_path="/no/where"), "there is no folder /no/where"),
        (lambda: quantize(push="nameless"), "push=nameless: write ORG/NAME"),
        (lambda: quantize(overrides=["preflight=only"]), "makes no checkpoint"),
        (lambda: quantize(overrides=["launcher=local"]), "launcher=local: works only for a sweep"),
        (lambda: quantize(overrides=["engine.dtype=half"]), "there is no 'engine'"),
        (lambda: evaluate(overrides=["model=[tiny,qwen3-8b]"]), "is a list; choose one with"),
        (lambda: evaluate(scenario=["base", "bas"]), "there is no 'bas'"),
        (lambda: evaluate(model="tiny", checkpoints="/no/where"), "there is no model in"),
        (lambda: recommend(mix="base"), "mix='base': give shares by scenario"),  # type: ignore[arg-type]
        (lambda: recommend(mix={"base": math.nan}), "mix.base=nan: must be more than 0"),
        (lambda: recommend(overrides=[1]), "overrides=[1]: give a list"),  # type: ignore[list-item]
        (lambda: recommend(overrides=None), "overrides=None: give a list"),  # type: ignore[arg-type]
        (lambda: recommend(results=b"x"), "results: b'x' is neither text"),  # type: ignore[arg-type]
        (lambda: recommend(results="two\nlines"), "text must be one line"),
        (lambda: recommend(results="/no/where.jsonl"), "there is no such file"),
        (lambda: recommend(tpot_ms=-1), "targets.tpot_ms=-1"),
        (lambda: recommend(tpot_ms=10**400), "targets.tpot_ms: the number is too large"),
        (lambda: recommend(overrides="targets.tpot_ms=20"), "overrides='targets.tpot_ms=20': give"),
        (lambda: recommend(overrides=["answer=json"]), "answer=json: prints the answer"),
        (lambda: recommend(overrides=["results=[[a]]"]), "['a'] is a list or mapping inside"),
    ],
)
def test_bad_input_is_raised_with_the_message_of_the_command(
    call, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QuantlineError, match=r".") as raised:
        call()
    assert expected in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "text",
    ["plain", "/a b/c", "it's", "a\\", "a\\'b", "1,2", "[x]", "a=b", "x: y", "é", "{a}", '"'],
)
def test_texts_arrive_as_they_are(text: str) -> None:
    config = compose(QUANTIZE, [f"prompt={value_text(text)}"])
    assert isinstance(config, QuantizeConfig)
    assert config.prompt == text


def test_arguments_are_the_commands_options(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[EvaluateConfig] = []

    def main(config: EvaluateConfig) -> None:
        configs.append(config)
        raise OSError(28, "No space left on device", "/x")

    monkeypatch.setattr("evaluate.command.main", main)
    with pytest.raises(QuantlineError, match="No space left") as raised:
        evaluate(
            model="tiny",
            scenario=["base", "interactive"],
            checkpoints=[Path("/a b")],
            repeats=2,
            force=True,
            overrides=["engine.max_model_len=512"],
        )
    assert raised.value.exit_code == 3
    (config,) = configs
    assert (config.model.name, list(config.scenario)) == ("tiny", ["base", "interactive"])
    assert (config.checkpoints, config.repeats, config.force) == (["/a b"], 2, True)
    assert config.engine.max_model_len == 512
    assert config.results == "results.jsonl"  # the command's default


@contextmanager
def _hydra_set_to(hydra: object, config: object) -> Iterator[None]:
    """Hydra replaces its instance, so that monkeypatch would set back one that nobody uses."""
    before = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    GlobalHydra.instance().hydra, HydraConfig.instance().cfg = hydra, config
    try:
        yield
    finally:
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = before


def test_the_callers_environment_and_hydra_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    hydra, config = object(), object()
    with _hydra_set_to(hydra, config):
        with pytest.raises(QuantlineError):
            recommend(results="/no/where.jsonl")
        assert (GlobalHydra.instance().hydra, HydraConfig.instance().cfg) == (hydra, config)
    assert os.environ["PYTHONPATH"] == "/theirs"
    assert "PYTHONSAFEPATH" not in os.environ


def test_a_recommendation_is_the_reports(tmp_path: Path) -> None:
    cells = [
        Cell("original", [2.0, 2.001, 1.999]),
        Cell("w8", [1.0, 1.001, 0.999]),
        Cell("w8", [3.0, 3.001, 2.999], "base"),
        Cell("original", [2.0, 2.001, 1.999], "base"),
    ]
    results = write(tmp_path / "results.jsonl", runs(*cells))
    found = recommend(results=results, mix={"interactive": 1.0})
    assert (found.best.candidate, found.faults) == ("w8", [])
    assert found.best.ratio is not None
    assert found.best.ratio.ratio == pytest.approx(2, rel=0.01)
    assert {choice.workload: choice.candidate for choice in found.answers[0].workloads} == {
        "interactive": "w8",
        "base": "original",
    }
    assert recommend(results=[results], mix={"base": 1}).best.candidate == "original"
    strict = recommend(results=results, mix={"interactive": 1}, tpot_ms=1)
    assert strict.best.candidate is None
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]  # no report


def test_another_thread_may_call(tmp_path: Path) -> None:
    """Only the main thread may handle signals."""
    (tmp_path / "file").write_text("")
    raised: list[BaseException] = []

    def call() -> None:
        try:
            evaluate(model="tiny", scenario="base", results=tmp_path / "file" / "r.jsonl")
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    (error,) = raised
    assert isinstance(error, QuantlineError)
    assert "file/r.jsonl: cannot be" in str(error)
    assert error.exit_code == 2
