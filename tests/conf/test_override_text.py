"""Values that are written for a command line are read back as the same values."""

import math
import random
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from conf.override_text import command_text, option_text, value_text

TEXTS = [
    *("a", "/a b/c", "a,b", "a=b", "it's", 'say "x"', "a\\", "a\\'", "\\\\'x", "", ".", "~/x"),
    *("${x}", "\\${x}", "\\\\${y}", "a{b}", "[x]", "ä ö", "007", "1e5", "true", "None", "null"),
    *("-1", "--x", "x:", "#", "a;b|c", "$HOME", "*", "@a", "a\tb", " lead", "trail ", "f(b,c)"),
    *("choice(1,2)", "\\", "'", "''", "re:.*\\.mlp\\..*", "nan", "Inf", "1_000", "0x1"),
]
OTHERS = [
    *(True, False, None, 3, -4, 1.5, 1e22, 1e-7, 0.1 + 0.2, 500.0, math.inf),
    ["a", "b c", 1, None, ["x,y"]],
    {"method": "ngram", "tokens": 3, "nested": {"x": [1, "a b", "1"]}},
    *([], {}),
]


def read_back(word: str) -> Any:
    (override,) = OverridesParser.create().parse_overrides([word])
    assert not override.is_sweep_override()
    config = OmegaConf.create({"key": None})
    OmegaConf.update(config, "key", override.value())
    return OmegaConf.to_container(config, resolve=True)["key"]  # type: ignore[call-overload,index]


@pytest.mark.parametrize("value", [*TEXTS, *OTHERS], ids=repr)
def test_a_value_is_read_back(value: Any) -> None:
    found = read_back(option_text("key", value))
    assert (found, type(found)) == (value, type(value))
    words = shlex.split(command_text("serve", option_text("key", [value])))
    assert words[:3] == ["python", "-m", "serve"]
    assert read_back(words[3]) == [value]


def test_random_texts_are_read_back() -> None:
    generator = random.Random(0)
    for _ in range(300):
        letters = generator.choices("ab\\'\"${}[],:= .~#()", k=generator.randint(0, 8))
        text = "".join(letters)
        assert read_back(option_text("key", text)) == text


def test_plain_words_need_no_quotes() -> None:
    assert value_text(["qwen3-8b", Path("/a/b.jsonl"), 0.5]) == "[qwen3-8b,/a/b.jsonl,0.5]"


@pytest.mark.parametrize("value", ["two\nlines", {"a b": 1}, b"x", {1, 2}, object()])
def test_what_the_grammar_lacks_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"one line|no name|neither text"):
        value_text(value)
