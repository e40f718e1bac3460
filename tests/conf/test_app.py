"""The door: names, options, errors, exit codes, help."""

import os
import re
from pathlib import Path

import pytest

from conf.app import report
from conf.errors import environment_failure, gate_failed
from conf.help import help_text, options
from evaluate.command import COMMAND as EVALUATE
from evaluate.compare.command import COMMAND as COMPARE
from evaluate.kernels.command import COMMAND as KERNEL_GRID
from evaluate.report.command import COMMAND as REPORT
from evaluate.traffic_check.command import COMMAND as TRAFFIC_CHECK
from evaluate.tune.command import COMMAND as TUNE
from quantize.command import COMMAND as QUANTIZE
from serve.command import COMMAND as SERVE
from serve.kernels.command import COMMAND as KERNELS
from tests.conftest import Run

COMMANDS = {
    "quantize": QUANTIZE,
    "evaluate": EVALUATE,
    "evaluate.compare": COMPARE,
    "evaluate.report": REPORT,
    "evaluate.kernels": KERNEL_GRID,
    "evaluate.tune": TUNE,
    "evaluate.traffic_check": TRAFFIC_CHECK,
    "serve": SERVE,
    "serve.kernels": KERNELS,
}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("quantize", "recipe=w8a8_smoth_gptq"), "Did you mean w8a8_smooth_gptq?"),
        (("quantize", "model=qwen3-8"), "Did you mean qwen3-8b?"),
        (("evaluate", "scenario=high_concurency"), "Did you mean high_concurrency?"),
        (("evaluate", "scenario=[interactive,bas]"), "there is no 'bas'"),
        (("evaluate", "+modle=x"), "Did you mean model?"),
        (("evaluate", "modle=x"), "Did you mean model?"),
        (("serve", "pot=1"), "Did you mean port?"),
        (("evaluate.kernels", "gird=vptq"), "Did you mean grid?"),
        (("evaluate.kernels", "grid=vtpq"), "choose one of vptq, linear"),
        (("evaluate.kernels", "tokens=[17]"), "at most 16"),
        (("quantize", "recipe.steps=[gtpq]"), "choose one of smoothquant, awq, sparsegpt"),
        (("quantize", "recipe.steps=[smoothquant]"), "the last step has to round"),
        (("quantize", "calibration.samples=many"), "calibration.samples: many is no whole number"),
        (("evaluate", "max_spread=much"), "max_spread: much is no number"),
        (("evaluate", "profile=maybe"), "profile: maybe is no boolean: write true or false"),
        (("quantize", "calibration.samples=0"), "must be at least 1"),
        (("quantize", "recipe=[w8a8"), "write NAME=VALUE"),
        (("quantize", "model.weights=rnadom"), "choose one of trained, random"),
        (("quantize", "model.path=/x", "model.weights=random"), "choose one with model=NAME"),
        (("quantize", "model.path=/nowhere/at/all"), "there is no folder /nowhere/at/all"),
        (("quantize", "model.name='../up'"), "a plain folder name is needed"),
        (("quantize", "lm_head=int3"), "lm_head=int3: choose one of int8, int4, fp8"),
        (("quantize", "group_size=0"), "group_size=0: must be at least 1"),
        (("quantize", "recipe.file=x.yaml", "lm_head=int8"), "the file is run as it is"),
        (("quantize", "recipe=w4a16_awq", "recipe.steps=[sparsegpt,gptq]"), "symmetric rounding"),
        (("quantize", "-m", "recipe=w8a8_smooth_gptq,nope"), "there is no 'nope'"),
        (("quantize", "model=tiny", "-m", "recipe=fp8_dynamic,nope"), "there is no 'nope'"),
        (("serve", "checkpoint=."), "there is no model in that folder"),
        (("quantize.verify", "nowhere"), "nowhere: there is no such folder"),
        (("evaluate", "recipes=[original]"), "or checkpoints=[] for the original alone"),
        (
            ("evaluate", "model=tiny", "checkpoints=[original]"),
            "checkpoints=[] measures the original alone",
        ),
        (("evaluate", "--foo"), "--foo: options are written NAME=VALUE"),
        (("evaluate", "scenario.base.batch=3"), "scenario.base: base was not chosen"),
        (
            ("evaluate", "scenario=base", "scenario.base.input_token=3"),
            "Did you mean scenario.base.input_tokens?",
        ),
        (("evaluate.report", "mix=base"), "mix: has options of its own; write mix.NAME=VALUE"),
        (("evaluate.report", "targets=3"), "targets: has options of its own"),
        (("evaluate.report", "results=[]"), "results=[]: name a file of results"),
        (("evaluate.report", "results=r.jsonl"), "r.jsonl: there is no such file"),
        (
            ("evaluate.report", "results=/a/run=3/r.jsonl"),
            "/a/run=3/r.jsonl: there is no such file",
        ),
        (("evaluate.report", "results=[~/no.jsonl,~/b.jsonl]"), "/no.jsonl: there is no such file"),
        (("evaluate.simulation", "0"), "0: write python -m evaluate.simulation [DRAWS], with 1 to"),
        (("evaluate.simulation", "²"), "²: write python -m evaluate.simulation [DRAWS]"),
        (("quantize.parallel.simulation", "x"), "x: write python -m quantize.parallel.simulation"),
        (("serve.kernels.hooks", "/"), "/: is not the folder of a vllm package"),
        (("serve.kernels.hooks", "a", "b"), "a b: write python -m serve.kernels.hooks [FOLDER]"),
        (("evaluate.report", "results=~/no.jsonl"), "/no.jsonl: there is no such file"),
        (("evaluate.report", "results=~no_such_user/r.jsonl"), "there is no user of that name"),
        (("serve", "config=~no_such_user/s.yaml"), "there is no user of that name"),
        (
            ("evaluate", "model=tiny", "engine=vllm_server", "engine.url=foo"),
            "engine.url=foo: is no address of a server; write http://HOST:PORT",
        ),
        (("evaluate.traffic_check", "url=ftp://h", "tokenizer=t"), "url=ftp://h: is no address"),
        (("evaluate", "model=tiny", "checkpoints=~/nope"), "checkpoints=~/nope: there is no model"),
        (("quantize", "recipe.steps=gtpq"), "choose one of smoothquant, awq, sparsegpt"),
        (("evaluate", "model=tiny", "checkpoints=nope"), "checkpoints=nope: there is no model in"),
        (("evaluate", "model=[tiny,qwen3-8b]"), "model=[tiny,qwen3-8b]: is a list; choose one"),
        (("quantize", "recipe=[]"), "recipe=[]: is a list; choose one with recipe=NAME"),
        (("quantize", "~recipe"), "~recipe: it cannot be left out; choose one with recipe=NAME"),
        (("quantize", "-m", "recipe=glob(x8*)"), "recipe=glob(x8*): there is no 'glob(x8*)'"),
        (("serve", "results=/nope", "mix={base: x}"), "mix.base: x is no number"),
        (("quantize", "model=tiny", "engine.max_model_len=9"), "there is no 'engine"),
        (("serve", "checkpoint="), "checkpoint='': must not be empty"),
        (("serve", "recipe="), "recipe_name='': must not be empty"),
        (("serve", "results="), "results='': must not be empty"),
        (("serve", "api_key_file="), "api_key_file='': must not be empty"),
        (("quantize", "push="), "push='': must not be empty"),
        (("quantize", "--hydra-help"), "--help shows the options"),
        (("quantize", "--config-path", "/nope"), "--config-path: has no effect"),
        (("quantize", "--package", "recipe"), "--package: works only with --cfg"),
        (("quantize", "--resolve"), "--resolve: works only with --cfg"),
        (("quantize", "--cfg", "job", "--package", "recipe.nope"), "there is no 'recipe.nope'"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(
    command_here: Run, arguments: tuple[str, ...], expected: str
) -> None:
    result = command_here(*arguments)
    assert result.returncode == 2
    assert expected in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_process_ends_with_the_exit_code_and_the_message(run_command: Run, name: str) -> None:
    result = run_command(name, "--foo")
    assert result.returncode == 2
    assert result.stderr == "error: --foo: options are written NAME=VALUE; --help shows them\n"
    assert result.stdout == ""


def test_a_sweep_takes_names_by_a_pattern(command_here: Run) -> None:
    result = command_here("quantize", "-m", "recipe=glob(w8a8_smooth*)", "group_size=0")
    assert result.returncode == 2
    failed = re.findall(r"error: recipe=(\w+) ", result.stderr)
    assert failed == ["w8a8_smooth_gptq", "w8a8_smooth_ptq"]


def test_an_unknown_name_lists_what_exists(command_here: Run) -> None:
    result = command_here("evaluate", "scenario=nothing_like_it")
    assert "Known: base, batch_size, capacity, context_length" in result.stderr


def test_debug_shows_the_traceback(command_here: Run) -> None:
    result = command_here("quantize", "recipe=nope", QUANTLINE_DEBUG="1")
    assert result.returncode == 2
    assert "Traceback" in result.stderr


def test_every_error_has_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(environment_failure("disk")) == 3
    assert report(gate_failed("quality")) == 4
    assert report(OSError(28, "No space left on device", "/x")) == 3
    assert report(KeyError("surprise")) == 1
    assert "QUANTLINE_DEBUG=1" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_it_does_the_groups_and_three_examples(command_here: Run, name: str) -> None:
    text = command_here(name, "--help").stdout
    assert text == help_text(COMMANDS[name]) + "\n"
    for group in COMMANDS[name].groups:
        assert f"\n{group}=NAME, by default " in text
    examples = text.split("Examples\n")[1].split("\n\n")[0].splitlines()
    assert len(examples) == 3
    assert all(line.startswith(f"  python -m {name}") for line in examples)
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str) -> None:
    bare = [path for path, _, text in options(COMMANDS[name].schema) if not text]
    assert [path for path in bare if path not in COMMANDS[name].groups] == []


def test_a_sweep_goes_on_and_lists_what_failed(command_here: Run, tmp_path: Path) -> None:
    missing = "/nowhere/a", "/nowhere/b"
    result = command_here("quantize", "-m", f"model.path={','.join(missing)}")
    assert result.returncode == 2
    for path in missing:
        assert re.search(f"error: .*model.path={path}.*there is no folder", result.stderr)
    assert list(tmp_path.iterdir()) == []


# A launcher as joblib, submitit and Ray have them: it pickles the job, runs it in another process,
# and unpickles what it returns.
LAUNCHER = """
import subprocess, sys
from dataclasses import dataclass
import cloudpickle
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import run_job
from hydra.types import HydraContext

@dataclass
class ApartConf:
    _target_: str = "hydra_plugins.apart.Apart"

ConfigStore.instance().store(group="hydra/launcher", name="apart", node=ApartConf)

def work(task, config, state):
    Singleton.set_state(state)
    context = HydraContext(config_loader=None, callbacks=Callbacks())
    return run_job(task, config, "hydra.sweep.dir", "hydra.sweep.subdir", context)

class Apart(BasicLauncher):
    def launch(self, job_overrides, initial_job_idx):
        returns = []
        for overrides in job_overrides:
            config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
            state = Singleton.get_state()
            sent = cloudpickle.dumps((work, (self.task_function, config, state)))
            script = (
                "import sys, cloudpickle; f, a = cloudpickle.load(sys.stdin.buffer);"
                "sys.stdout.buffer.write(cloudpickle.dumps(f(*a)))"
            )
            command = [sys.executable, "-c", script]
            apart = subprocess.run(command, input=sent, stdout=subprocess.PIPE, check=True)
            returns.append(cloudpickle.loads(apart.stdout))
        return returns
"""


def test_jobs_in_other_processes_report_their_failures(run_command: Run, tmp_path: Path) -> None:
    (tmp_path / "plugins" / "hydra_plugins").mkdir(parents=True)
    (tmp_path / "plugins" / "hydra_plugins" / "apart.py").write_text(LAUNCHER)
    places = [str(tmp_path / "plugins"), os.environ.get("PYTHONPATH", "")]
    missing = "/nowhere/a", "/nowhere/b"
    result = run_command(
        *("quantize", "-m", "hydra/launcher=apart", f"model.path={','.join(missing)}"),
        PYTHONPATH=os.pathsep.join(places),
    )
    assert result.returncode == 2, result.stderr
    for path in missing:
        assert re.search(f"error: .*model.path={path}.*there is no folder", result.stderr)


def test_a_run_leaves_no_hydra_folders(command_here: Run, tmp_path: Path) -> None:
    command_here("quantize", "model.path=/nowhere")
    assert list(tmp_path.iterdir()) == []
