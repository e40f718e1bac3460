"""`config=FILE`: options of a file are those of a command line, which comes first."""

import re
from pathlib import Path

import pytest

from conf.compose import compose
from conf.errors import QuantlineError
from conf.files.option_file import options_in
from conf.schema.commands import ServeConfig
from serve.command import COMMAND

FILE = """# as evaluate.tune writes it
model: tiny
recipe: original
port: 8123
engine:
  kernels: auto
  max_num_seqs: 64
  compilation_config: {pass_config: {fuse_norm_quant: true}, custom_ops: [all]}
  text: "it's 'true'"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(FILE)
    return path


def composed(*overrides: str) -> ServeConfig:
    config = compose(COMMAND, list(overrides))
    assert isinstance(config, ServeConfig)
    return config


def test_options_of_a_file_are_those_of_the_command_line(file: Path) -> None:
    config = composed(f"config={file}")
    assert (config.model.name, config.recipe_name, config.port) == ("tiny", "original", 8123)
    assert config.engine.kernels.families == ["auto"]
    assert config.engine.options == {
        "max_num_seqs": 64,
        "compilation_config": {"pass_config": {"fuse_norm_quant": True}, "custom_ops": ["all"]},
        "text": "it's 'true'",
    }


def test_the_command_line_comes_first(file: Path) -> None:
    given = ["engine.max_num_seqs=8", "port=9", "model=smollm2-135m", "engine.kernels=vllm"]
    config = composed(f"config={file}", *given)
    assert (config.port, config.model.name) == (9, "smollm2-135m")
    assert config.engine.options["max_num_seqs"] == 8
    assert config.engine.kernels.families == ["vllm"]


def test_text_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "o.yaml"
    path.write_text("host: 'true'\nprompt: '12'\nmix: {base: 1}\ncheckpoint: null\n")
    options = options_in(path, ServeConfig)
    assert options["mix.base"] == "mix.base=1"
    assert options["checkpoint"] == "checkpoint=null"
    config = composed(f"config={path}", "results=r.jsonl")
    assert (config.host, config.prompt) == ("true", "12")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pot: 1\n", "Did you mean port?"),
        ("port: many\n", "port: many is no whole number"),
        ("port: 0\n", "port=0: must be at least 1"),
        ("model: tny\n", "Did you mean tiny?"),
        ("- port\n", "must be a mapping of options"),
        ("port: [1\n", "o.yaml:2: no YAML"),
        ("port: 1\nport: 2\n", "o.yaml:2: the key 'port' appears twice"),
        ("config: other.yaml\n", "o.yaml:1: config: a file of options names no other one"),
        ("engine: {since: 2020-01-01}\n", "o.yaml:1: engine.since: 2020-01-01 is neither text"),
        ('prompt: "two\\nlines"\n', "text must be one line"),
        ("engine: {x: {'a b': 1}}\n", "'a b' is no name"),
        ("hydra: {run: {dir: /x}}\n", "o.yaml:1: hydra: 'hydra' is no name of an option"),
        ("'hydra/launcher': basic\n", "'hydra/launcher' is no name of an option"),
        ("port: 1\n'++port': 2\n", "o.yaml:2: ++port: '++port' is no name of an option"),
        ("'~port': 8000\n", "'~port' is no name of an option"),
        ("'engine.max_num_seqs': 4\n", "'engine.max_num_seqs' is no name of an option"),
    ],
)
def test_a_bad_file_is_named(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text(text)
    with pytest.raises(QuantlineError) as raised:
        composed(f"config={tmp_path / 'o.yaml'}")
    assert expected in str(raised.value)


@pytest.mark.parametrize("name", ["nowhere.yaml", ".", ""])
def test_a_missing_file_is_named(name: str) -> None:
    with pytest.raises(QuantlineError, match=f"config={re.escape(name)}: there is no such file"):
        composed(f"config={name}")


def test_a_file_with_plus_signs_counts_and_null_is_none(tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text("port: 9000\n")
    assert composed(f"++config={tmp_path / 'o.yaml'}").port == 9000
    assert composed("config=null").port == 8000


def test_a_mapping_is_given_as_a_whole(tmp_path: Path) -> None:
    shares = {"base": 0.6, "serving": 2.0}
    assert composed("results=r.jsonl", "mix={base:0.6,serving:2}").mix == shares
