"""Every number has a range, stated once, checked at the entry and shown in help."""

import dataclasses
import math
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from conf.compose import Command, compose
from conf.errors import QuantlineError
from conf.explain import without_none
from conf.help import help_text, options
from conf.schema.ranges import HIDDEN, RANGE, Range, check_value, check_values
from evaluate.command import COMMAND as EVALUATE
from evaluate.compare.command import COMMAND as COMPARE
from evaluate.report.command import COMMAND as REPORT
from quantize.command import COMMAND as QUANTIZE
from serve.command import COMMAND as SERVE
from serve.kernels.command import COMMAND as KERNELS

COMMANDS = (QUANTIZE, EVALUATE, COMPARE, REPORT, SERVE, KERNELS)


def numbers_in(hint: Any) -> bool:
    """Whether a field holds numbers, alone or in a list or mapping."""
    inner = without_none(hint)
    return inner in (int, float) or any(numbers_in(part) for part in typing.get_args(inner))


def numeric_fields(schema: type[Any], before: str = "") -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        if HIDDEN in field.metadata:
            continue
        part, name = without_none(hints[field.name]), before + field.name
        if typing.get_origin(part) is dict and dataclasses.is_dataclass(typing.get_args(part)[1]):
            part = typing.get_args(part)[1]
        if dataclasses.is_dataclass(part):
            yield from numeric_fields(typing.cast(type, part), f"{name}.")
        elif numbers_in(part):
            yield name, field


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_numeric_option_has_a_range_and_its_default_is_inside(command: Command) -> None:
    fields = list(numeric_fields(command.schema))
    assert fields
    assert [name for name, field in fields if RANGE not in field.metadata] == []
    for name, field in fields:
        if isinstance(field.default, int | float):
            assert field.default in field.metadata[RANGE], name


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_shows_the_range_of_every_numeric_option(command: Command) -> None:
    text = " ".join(help_text(command).split())
    names = {field: name for name, field in command.plain}
    for path, field, words in options(command.schema):
        if RANGE in field.metadata:
            shown = f"{words} ({field.metadata[RANGE].short})"
            assert f"{names.get(path, path)}=" in text
            assert " ".join(shown.split()) in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_no_numeric_option_takes_nonsense(command: Command) -> None:
    for name, field in numeric_fields(command.schema):
        allowed: Range = field.metadata[RANGE]
        below = allowed.least if allowed.above_least else allowed.least - 1
        for value in (math.nan, math.inf, -math.inf, below, allowed.most * 2, 1e300, 10**400):
            with pytest.raises(ValueError, match=f"^{name}=.*: must be {allowed}"):
                check_value(name, value, field.metadata)
            with pytest.raises(ValueError, match="must be "):
                check_value(name, [value], field.metadata)
        check_value(name, allowed.most, field.metadata)


@pytest.mark.parametrize(
    ("command", "option", "message"),
    [
        (QUANTIZE, "recipe.gptq.dampening=7", "dampening=7.0: must be"),
        (QUANTIZE, "recipe.gptq.dampening=-0.1", "dampening=-0.1: must be"),
        (QUANTIZE, "recipe.gptq.max_fallback=nan", "max_fallback=nan: must be at least 0 and at"),
        (QUANTIZE, "recipe.gptq.block_size=2.5", "recipe.gptq.block_size: 2.5 is no whole number"),
        (QUANTIZE, "recipe.gptq.block_size=true", "block_size: True is no whole number"),
        (
            QUANTIZE,
            "recipe.smoothquant.smoothing_strength=1.01",
            "must be at least 0 and at most 1",
        ),
        (QUANTIZE, "recipe.awq.grid=0", "recipe.awq.grid=0: must be at least 4"),
        (QUANTIZE, "recipe.weights.bits=16", "recipe.weights.bits=16: must be at least 2"),
        (QUANTIZE, "recipe.weights.bits=null", "recipe.weights.bits"),
        (QUANTIZE, "recipe.autoround.iterations=0", "recipe.autoround.iterations=0: must be"),
        (QUANTIZE, "recipe.weights.type=flaot", "recipe.weights.type=flaot: choose one of int, fl"),
        (QUANTIZE, "calibration.samples=1e30", "calibration.samples: 1e+30 is no whole number"),
        (QUANTIZE, f"calibration.samples={10**30}", "must be at least 1 and at most 1000000"),
        (QUANTIZE, "calibration.seed=-1", "calibration.seed=-1: must be at least 0"),
        (QUANTIZE, "model.seed=4294967296", "model.seed=4294967296: must be at least 0 and at"),
        (QUANTIZE, "model.architecture.num_key_value_heads=0", "num_key_value_heads=0: must be"),
        (QUANTIZE, "group_size=-128", "group_size=-128: must be at least 1 and at most 65536"),
        (QUANTIZE, "group_size=1e2", "give a whole number, or auto"),
        (QUANTIZE, "output_dir=''", "output_dir='': must not be empty"),
        (QUANTIZE, 'prompt="a\ud800"', "holds a character that cannot be stored"),
        (EVALUATE, "repeats=0", "repeats=0: must be at least 1 and at most 10000"),
        (EVALUATE, "max_spread=inf", "max_spread=inf: must be more than 0"),
        (EVALUATE, "engine.max_model_len=0", "engine.max_model_len=0: must be at least 1"),
        (EVALUATE, "scenario.interactive.batch=0", "scenario.interactive.batch=0: must be at leas"),
        (EVALUATE, "gpu.memory_gib=-1", "gpu.memory_gib=-1.0: must be more than 0"),
        (EVALUATE, "mix.base=nan", "mix.base=nan: must be more than 0"),
        (EVALUATE, "engine.swap_space=nan", "engine.options.swap_space=nan: must be a finite"),
        (REPORT, "targets.min_recovery=1.5", "targets.min_recovery=1.5: must be more than 0 and"),
        (REPORT, "out=''", "out='': must not be empty"),
        (COMPARE, "max_spread=0", "max_spread=0.0: must be more than 0 and at most 100"),
        (SERVE, "port=0", "port=0: must be at least 1 and at most 65535"),
        (SERVE, "drain_s=-1", "drain_s=-1.0: must be at least 0 and at most 86400"),
        (SERVE, "restart=allways", "restart=allways: choose one of never, on-failure."),
    ],
)
def test_a_value_out_of_its_range_is_named(command: Command, option: str, message: str) -> None:
    with pytest.raises(QuantlineError) as error:
        compose(command, ["results=[a.jsonl,b.jsonl]"] * (command is COMPARE) + [option])
    assert message in str(error.value)
    assert error.value.exit_code == 2


def test_a_part_that_is_not_given_is_not_checked() -> None:
    check_values(QUANTIZE.schema, {"batch_size": 3, "recipe": None, "model": "???"})
    with pytest.raises(ValueError, match=r"^recipe\.weights\.bits=99: must be"):
        check_values(QUANTIZE.schema, {"recipe": {"weights": {"bits": 99}}})
