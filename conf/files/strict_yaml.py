"""Reads a YAML file that people write, and refuses what YAML would accept silently.

A repeated key, an alias that unfolds into millions of entries, a file that is no text, a tag that
would run code: each is one message with the file and the line.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import shown

BYTES_MOST = 1 << 20
DEPTH_MOST = 40
ENTRIES_MOST = 20_000
TUPLE = "tag:yaml.org,2002:python/tuple"
MERGE = "tag:yaml.org,2002:merge"
STRING = "tag:yaml.org,2002:str"
TYPES = "tag:yaml.org,2002:"
Keys = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """A safe loader that reads the tuples of llm-compressor's files as lists."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node. Where the text does not fit its type, as the date 2020-13-45 or
        `!!bool maybe`, PyYAML raises whatever its parser of that type happens to meet."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError) as error:
            kind = node.tag.removeprefix(TYPES)
            raise ConstructorError(
                problem=f"{shown(node.value)} is no {kind}", problem_mark=node.start_mark
            ) from error


def _tuple(loader: yaml.SafeLoader, node: Any) -> list[Any]:
    return loader.construct_sequence(node, deep=True)


_Loader.add_constructor(TUPLE, _tuple)


@dataclass
class YamlFile:
    """A file's content, and the line of each key."""

    path: Path
    content: Any
    lines: dict[Keys, int] = field(default_factory=dict)

    def error(self, keys: Keys, message: str) -> QuantlineError:
        """A message with the file, the line and the key, or its nearest parent in the file."""
        known_keys = keys
        while known_keys and known_keys not in self.lines:
            known_keys = known_keys[:-1]
        line = f":{self.lines[known_keys]}" if known_keys else ""
        name = ".".join(str(key) for key in keys)
        return bad_input(f"{self.path}{line}: {name + ': ' if name else ''}{message}")


def read(path: Path) -> YamlFile:
    """The file's content; raises, with file and line, where it is no plain YAML."""
    text = _read_text(path)
    try:
        node = yaml.compose(text, _Loader)
        lines = dict(_key_lines(path, node)) if node is not None else {}
        return YamlFile(path, yaml.load(text, _Loader), lines)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise bad_input(f"{path}{line}: no YAML ({problem})") from error
    except (ValueError, RecursionError, OverflowError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise bad_input(f"{path}: no YAML ({reason})") from error


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise bad_input(f"{path}: there is no such file")
    if path.stat().st_size > BYTES_MOST:
        raise bad_input(f"{path}: too large; at most {BYTES_MOST} bytes")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad_input(f"{path}: no UTF-8 text (byte {error.start})") from error


def _key_lines(path: Path, root: yaml.Node) -> Iterator[tuple[Keys, int]]:
    """The line of every key, after aliases are expanded. Bounded: aliases can grow without end."""
    entries = 0
    open_nodes: list[tuple[Keys, yaml.Node]] = [((), root)]
    while open_nodes:
        keys, node = open_nodes.pop()
        entries += 1
        line = node.start_mark.line + 1
        if entries > ENTRIES_MOST:
            raise bad_input(
                f"{path}:{line}: more than {ENTRIES_MOST} entries after aliases are expanded"
            )
        if len(keys) > DEPTH_MOST:
            raise bad_input(f"{path}:{line}: nested more than {DEPTH_MOST} deep")
        if isinstance(node, yaml.MappingNode):
            yield from _mapping_lines(path, keys, node, open_nodes)
        elif isinstance(node, yaml.SequenceNode):
            for number, child in enumerate(node.value):
                yield (*keys, number), child.start_mark.line + 1
                open_nodes.append(((*keys, number), child))


def _mapping_lines(
    path: Path, keys: Keys, node: yaml.MappingNode, open_nodes: list[tuple[Keys, yaml.Node]]
) -> Iterator[tuple[Keys, int]]:
    seen: dict[str, int] = {}
    for key, child in node.value:
        line = key.start_mark.line + 1
        if key.tag == MERGE:
            open_nodes.append((keys, child))
            continue
        if not isinstance(key, yaml.ScalarNode) or key.tag != STRING:
            key_text = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            raise bad_input(f"{path}:{line}: the key {key_text!r} is not a name")
        if key.value in seen:
            raise bad_input(
                f"{path}:{line}: the key '{key.value}' appears twice, first in line "
                f"{seen[key.value]}"
            )
        seen[key.value] = line
        yield (*keys, key.value), line
        open_nodes.append(((*keys, key.value), child))
