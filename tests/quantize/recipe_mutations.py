"""Seeded damage to a recipe file, of the kinds that people and programs do."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

NUMBERS = (0, -1, 1, 3, 7, 2.5, 1e30, 10**40, float("nan"), float("inf"), -float("inf"), 1e-300)
WORDS = ("", " ", "int", "float", "channel", "group", "token", "W4A16", "re:(", "re:", "Linear")
ODD = ("\u0661\u0662", "caf\u00e9", "\u202egptq", "a" * 2000, "${nope}", "???", "../up", "a\tb")
VALUES: tuple[Any, ...] = (*NUMBERS, *WORDS, *ODD, True, False, None, [], {}, [1], {"a": 1}, [[]])
Place = tuple[Any, Any]


def _places(content: Any) -> Iterator[Place]:
    """Every container and key of a tree."""
    entries = content.items() if isinstance(content, dict) else enumerate(content)
    for key, part in list(entries):
        yield content, key
        if isinstance(part, dict | list):
            yield from _places(part)


def _delete(tree: Any, draw: random.Random) -> None:
    holder, key = draw.choice(list(_places(tree)))
    del holder[key]


def _retype(tree: Any, draw: random.Random) -> None:
    holder, key = draw.choice(list(_places(tree)))
    holder[key] = copy.deepcopy(draw.choice(VALUES))


def _number(tree: Any, draw: random.Random) -> None:
    places = [
        (holder, key)
        for holder, key in _places(tree)
        if isinstance(holder[key], int | float) and not isinstance(holder[key], bool)
    ]
    if places:
        holder, key = draw.choice(places)
        holder[key] = draw.choice(NUMBERS)


def _rename(tree: Any, draw: random.Random) -> None:
    named = [(holder, key) for holder, key in _places(tree) if isinstance(key, str)]
    holder, key = draw.choice(named)
    letters = list(key)
    at = draw.randrange(len(letters))
    letters[at] = draw.choice("xq_9\u00e9")
    content = {("".join(letters) if old == key else old): part for old, part in holder.items()}
    holder.clear()
    holder.update(content)


def _move(tree: Any, draw: random.Random) -> None:
    """A subtree under another key, as wrong indentation gives."""
    holder, key = draw.choice(list(_places(tree)))
    part = copy.deepcopy(holder[key])
    other, place = draw.choice(list(_places(tree)))
    other[place] = part


def _reorder(tree: Any, draw: random.Random) -> None:
    holders = [tree, *(holder[key] for holder, key in _places(tree))]
    several = [part for part in holders if isinstance(part, dict | list) and len(part) > 1]
    if not several:
        return
    part = draw.choice(several)
    if isinstance(part, list):
        draw.shuffle(part)
    else:
        items = list(part.items())
        draw.shuffle(items)
        part.clear()
        part.update(items)


def _swap_value(tree: Any, draw: random.Random) -> None:
    """The value of one key under another."""
    places = list(_places(tree))
    (holder, key), (other, place) = draw.choice(places), draw.choice(places)
    holder[key] = copy.deepcopy(other[place])


TREE: tuple[Callable[[Any, random.Random], None], ...] = (
    _delete,
    _retype,
    _retype,
    _number,
    _number,
    _rename,
    _move,
    _reorder,
    _swap_value,
)


def _text(text: str, draw: random.Random) -> str:
    """Damage to the characters: lines twice, lost or cut, stray signs."""
    lines = text.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    kind = draw.randrange(6)
    if kind == 0:
        lines.insert(at, lines[at])
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines[at] = "\t" + lines[at]
    elif kind == 3:
        lines[at] = " " * draw.randrange(1, 5) + lines[at]
    elif kind == 4:
        return text[: draw.randrange(len(text))]
    else:
        place = draw.randrange(len(text))
        return text[:place] + draw.choice("{}[]:&*!|>%@`\"'#,\0\u00e9-0") + text[place + 1 :]
    return "".join(lines)


def mutations(texts: list[str], count: int, seed: int) -> Iterator[str]:
    """Damaged copies of the files, one or two kinds of damage each."""
    draw = random.Random(seed)
    for _ in range(count):
        text = draw.choice(texts)
        if draw.random() < 0.25:
            yield _text(text, draw)
            continue
        tree = yaml.safe_load(text)
        for _ in range(draw.choice((1, 1, 2))):
            if list(_places(tree)):
                draw.choice(TREE)(tree, draw)
        yield yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
