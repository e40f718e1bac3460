"""The command: bad input, the settings file, and a search on a real engine."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from conf.compose import compose
from conf.errors import QuantlineError, bad_input
from conf.override_text import option_text
from conf.schema.kernels import KernelsConfig
from conf.schema.load import EngineConfig
from conf.schema.model import ModelConfig
from conf.schema.tune import TuneConfig, budget_seconds
from evaluate.results.results_file import read
from evaluate.results.rows import FailedRow, Row
from evaluate.results.significance import Ratio, Start
from evaluate.tune.command import COMMAND
from evaluate.tune.display import sentences
from evaluate.tune.engines import trial_of
from evaluate.tune.search import Outcome
from evaluate.tune.serve_file import NOT_SERVED, _engine_options, write_settings
from evaluate.tune.space import DEFAULT
from evaluate.tune.target import tuned_checkpoint
from evaluate.tune.trials import Trial, TrialRequest
from serve.command import COMMAND as SERVE
from tests.conftest import Run
from tests.evaluate.tune.made_up import space, whole

TUNED = (("performance_mode", "throughput"), ("custom_ops", "all"))


def tune_config(*overrides: str) -> TuneConfig:
    config = compose(COMMAND, list(overrides))
    assert isinstance(config, TuneConfig)
    return config


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["budget=abc"], "budget=abc: write a time with its unit, as 90s, 20m or 1h"),
        (["budget=20"], "budget=20: write a time with its unit"),
        (["budget=0s"], "budget=0s: must be more than 0s"),
        (["budget=9999h"], "at most 720h"),
        (["scenario=standard"], "there is no single goal, its workloads are interactive, "),
        (["scenario=none"], "there is no single goal, its workloads are none"),
        (
            ["scenario=capacity", "targets.ttft_ms=500", "targets.tpot_ms=20"],
            "scenario=capacity: is a search of its own",
        ),
        (["settings=[max_num_seq]"], "Did you mean max_num_seqs?"),
        (["settings=[]"], "settings=[]: name at least one setting"),
        (["engine=transformers"], "engine=transformers: only vLLM has settings"),
        (["engine=vllm_server", "engine.url=http://h:1"], "engine.url: a running server"),
        (["accuracy=questions", "accuracy.tasks=[mmlu]"], "works only with none or quick here"),
        (["weights=random", "accuracy=quick"], "weights=random has no accuracy"),
        (["weights=random", "checkpoint=/m"], "weights=random tunes recipe=NAME"),
        (["checkpoint=/m", "recipe=x"], "checkpoint and recipe: only one of them"),
        (["scenario=traffic", "side_by_side=2"], "side_by_side=2: scenario=traffic needs"),
        (["checkpoint_root=none"], "there is no checkpoint under none; make one with"),
        (["out=."], "out=.: is a folder; give the name of a file in it"),
        (["out=/dev/null/s.yaml"], "out=/dev/null/s.yaml: /dev/null is no folder"),
        (["out=r.jsonl", "results=./r.jsonl"], "out=r.jsonl: is the results file"),
        (["recipe=w8"], "recipe=w8 of tiny under checkpoints: there is no 'w8'"),
        (["recipe=fp8_dynamic"], "make it with python -m quantize recipe=fp8_dynamic model=tiny"),
        (["weights=random", "recipe=fp8_dynamc"], "recipe=fp8_dynamc: there is no"),
        (["checkpoint=/nowhere"], "checkpoint=/nowhere: there is no model in that folder"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], expected: str, command_here: Run) -> None:
    result = command_here("evaluate.tune", "model=tiny", *arguments)
    assert result.returncode == 2, result.stderr
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_hub_id_that_does_not_exist_fails_before_the_original_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched: list[str | None] = []

    def fetch(model: ModelConfig) -> Path:
        fetched.append(model.id)
        raise bad_input("there is no such model")

    monkeypatch.setattr("evaluate.tune.target.model_folder", fetch)
    monkeypatch.setattr("evaluate.measure.targets.model_folder", fetch)
    with pytest.raises(QuantlineError, match="no such model"):
        tuned_checkpoint(tune_config("model=qwen3-8b", "scenario=base", "checkpoint=org/misspelt"))
    assert fetched == ["org/misspelt"]


def test_a_budget_has_a_unit() -> None:
    assert [budget_seconds(text) for text in ("90s", "20m", "1.5h")] == [90, 1200, 5400]


def written(tmp_path: Path, outcome: Outcome, *overrides: str) -> dict[str, object]:
    config = tune_config("model=tiny", f"out={tmp_path / 's.yaml'}", *overrides)
    engine = space().engine(config.engine, outcome.chosen)
    write_settings(Path(config.out), config, Path("/models/w8"), engine, None, outcome)
    content = yaml.safe_load(Path(config.out).read_text())
    assert isinstance(content, dict)
    return content


def test_serve_takes_the_settings_file(tmp_path: Path) -> None:
    outcome = Outcome([whole()], TUNED, TUNED, Ratio(1.1, 1.05, 1.15))
    content = written(tmp_path, outcome, "engine.seed=1", "engine.dtype=bfloat16")
    assert content == {
        "checkpoint": "/models/w8",
        "engine": {
            "dtype": "bfloat16",
            "seed": 1,
            "performance_mode": "throughput",
            "compilation_config": {"custom_ops": ["all"]},
        },
    }
    text = (tmp_path / "s.yaml").read_text()
    assert "# performance_mode=throughput, custom_ops=all: 1.100 times as fast" in text
    served = compose(SERVE, [f"config={tmp_path / 's.yaml'}"])
    assert served.checkpoint == "/models/w8"
    assert served.engine.options == space().engine(EngineConfig(options={"seed": 1}), TUNED).options


def test_the_default_is_written_where_nothing_is_faster(tmp_path: Path) -> None:
    outcome = Outcome([whole()], reason="no trial was faster than the default settings")
    assert written(tmp_path, outcome, "recipe=original") == {"model": "tiny", "recipe": "original"}
    assert "the default settings are kept" in (tmp_path / "s.yaml").read_text()
    random = written(tmp_path, outcome, "weights=random", "recipe=fp8_dynamic")
    assert random == {"model": "tiny", "recipe": "fp8_dynamic"}
    assert "random weights" in (tmp_path / "s.yaml").read_text()


def test_a_limited_context_stands_beside_the_gain(tmp_path: Path) -> None:
    outcome = Outcome([whole()], TUNED, TUNED, Ratio(1.1, 1.05, 1.15))
    config = tune_config("model=tiny", "recipe=original", f"out={tmp_path / 's.yaml'}")
    write_settings(Path(config.out), config, tmp_path, EngineConfig(), 384, outcome)
    assert yaml.safe_load(Path(config.out).read_text())["engine"] == {"max_model_len": 384}
    gain, context = sentences(outcome, 384)
    assert "1.100 times as fast" in gain
    assert "max_model_len=384" in context
    assert f"# {context}\n" in Path(config.out).read_text()
    assert len(sentences(outcome)) == 1


def faster_than_the_default(request: TrialRequest, rows: Sequence[Row]) -> Trial:
    """The trial with times that win: which settings are faster differs between machines."""
    trial = trial_of(request, rows)
    if trial.start is None or request.assignment == DEFAULT:
        return trial
    return replace(trial, start=Start(tuple(log - math.log(20) for log in trial.start.logs)))


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_a_real_engine_is_tuned_and_a_second_command_measures_nothing(
    command_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three starts: the default, settings with which vLLM refuses to start, and settings that win.
    Four more confirm these."""
    monkeypatch.setattr("evaluate.tune.engines.trial_of", faster_than_the_default)
    command = [
        *("evaluate.tune", "model=tiny", "recipe=original", "repeats=2", "trials=3"),
        *("scenario=base", "scenario.base.input_tokens=16", "scenario.base.output_tokens=4"),
        *("settings=[max_num_seqs]", "engine.max_num_batched_tokens=20", "budget=1h"),
    ]
    result = command_here(*command)
    assert result.returncode == 0, result.stderr
    rows, faults = read(tmp_path / "results.jsonl")
    assert faults == []
    runs = [(row.start, row.environment.engine_options.get("max_num_seqs")) for row in rows]
    failed = rows[2]
    assert isinstance(failed, FailedRow)
    assert "max_num_batched_tokens" in failed.reason
    search = [(0, None)] * 2 + [(0, 32)] + [(0, 16)] * 2
    assert runs == search + [(start, seqs) for start in (1, 2) for seqs in (None, None, 16, 16)]
    assert "max_num_seqs=16: " in result.stdout
    assert " times as fast as the default settings" in result.stdout
    again = command_here(*command)
    assert "3 finished trials are there already" in again.stderr
    assert read(tmp_path / "results.jsonl")[0] == rows
    served = command_here("serve", "config=serve.yaml", "dry_run=true")
    assert served.returncode == 0, served.stderr
    assert "--max-num-batched-tokens 20" in served.stdout
    assert "--max-num-seqs 16" in served.stdout
    job = command_here("serve", "config=serve.yaml", "--cfg", "job")
    assert job.returncode == 0, job.stderr
    assert yaml.safe_load(job.stdout)["engine"]["options"] == {
        "max_num_batched_tokens": 20,
        "max_num_seqs": 16,
    }


@pytest.mark.parametrize(
    "options",
    [
        ["engine.kernels.second_layout=false"],
        ["engine.kernels=[one_token,sparse]", "engine.kernels.second_layout=false"],
        ["engine.kernels=auto", "engine.kernels.second_layout=false"],
        ["engine.kernels=auto"],
        ["engine.kernels=[one_token,sparse]"],
        ["engine.dtype=float16", "engine.enforce_eager=false", "engine.max_model_len=99"],
        ["engine.allow_missing_kv_scales=true"],
        ["engine.chat_template='a, b=${c}'", "engine.hf_overrides={a:{b:[1,x]}}"],
    ],
)
def test_the_settings_file_keeps_every_engine_setting(options: list[str], tmp_path: Path) -> None:
    escaped = [option.replace("${", "\\${") for option in options]
    written(tmp_path, Outcome([whole()]), *escaped)
    engine = tune_config("model=tiny", *escaped).engine
    assert compose(SERVE, [f"config={tmp_path / 's.yaml'}"]).engine == engine


def test_a_setting_of_the_engine_is_served_or_is_said_not_to_be() -> None:
    """A new field is written to the file without further work."""
    engine = EngineConfig(kernels=KernelsConfig(second_layout=False))
    assert _engine_options(engine, None) == {"kernels": {"second_layout": False}}
    assert {*NOT_SERVED} <= {field.name for field in fields(EngineConfig)}


def test_a_changed_model_is_served_from_its_folder(tmp_path: Path) -> None:
    outcome = Outcome([whole()])
    changed = written(tmp_path, outcome, "recipe=original", "model.seed=5")
    assert changed == {"checkpoint": "/models/w8"}
    named = written(tmp_path, outcome, "recipe=original", "model=custom", "model.path=/models/x")
    assert named == {"model": {"path": "/models/x"}, "recipe": "original"}


@pytest.mark.parametrize("name", ["a b.yaml", "a,b.yaml", "it's.yaml", "a=b [c] ${d}.yaml"])
def test_serve_takes_a_settings_file_of_any_name(name: str, tmp_path: Path) -> None:
    config = tune_config("model=tiny", "recipe=original", option_text("out", tmp_path / name))
    write_settings(Path(config.out), config, tmp_path, EngineConfig(), None, Outcome([whole()]))
    assert compose(SERVE, [option_text("config", tmp_path / name)]).recipe_name == "original"
