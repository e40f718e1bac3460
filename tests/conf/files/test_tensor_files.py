"""Headers and indices of safetensors files."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from conf.files.tensor_files import INDEX, tensor_files, wrong_total

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
NEXT = {"dtype": "I8", "shape": [4], "data_offsets": [8, 12]}


def write(path: Path, header: Any, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def refuse(folder: Path, words: str) -> None:
    with pytest.raises(QuantlineError, match=words) as caught:
        tensor_files(folder)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": ENTRY | {"dtype": "F33"}}, "a has the unknown type 'F33'"),
        ({"a": ENTRY | {"dtype": 4}}, "'a': dtype is 4"),
        ({"a": ENTRY | {"shape": [-2]}}, r"'a': shape\.0 is -2"),
        ({"a": ENTRY | {"shape": [3]}}, "a lies at 0 to 8, 0 to 12 is expected"),
        ({"a": ENTRY | {"data_offsets": [8, 0]}}, "a lies at 8 to 0"),
        ({"a": ENTRY | {"data_offsets": [0]}}, "'a': data_offsets"),
        ({"a": ENTRY, "b": ENTRY}, "b lies at 0 to 8, 8 to 16 is expected"),
        ({"a": ENTRY, "b": NEXT | {"data_offsets": [9, 13]}}, "b lies at 9 to 13"),
        ({"a": {"dtype": "F32"}}, "'a': there is no shape"),
        ({"a": None}, "'a'"),
        ({"a": ENTRY}, "4 bytes after its last tensor"),
        ({"a": ENTRY, "b": NEXT | {"shape": [9], "data_offsets": [8, 17]}}, "is cut short"),
        (b'{"a": 1, "a": 2}', "the key 'a' appears twice in an object"),
        (b"\xff\xfe", "no UTF-8"),
        (b"[]", "holds a list"),
    ],
)
def test_a_damaged_header_is_named(tmp_path: Path, header: Any, words: str) -> None:
    write(tmp_path / "model.safetensors", {"a": ENTRY, "b": NEXT}, bytes(12))
    assert set(tensor_files(tmp_path).tensors) == {"a", "b"}
    write(tmp_path / "model.safetensors", header, bytes(12))
    refuse(tmp_path, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda i: i.pop("weight_map"), "there is no weight_map"),
        (lambda i: i.update(weight_map={}), "weight_map is {}"),
        (lambda i: i.update(weight_map=[]), "weight_map"),
        (lambda i: i["weight_map"].update(a=None), r"weight_map\.a is None"),
        (lambda i: i["weight_map"].update(a="../a"), r"names \.\./a, which is not there"),
        (lambda i: i["weight_map"].update(a="2.safetensors"), "says that a is in 2.safetensors"),
        (lambda i: i["weight_map"].update(c="1.safetensors"), "says that c is in 1.safetensors"),
        (lambda i: i["weight_map"].pop("a"), "does not list a, which is in 1.safetensors"),
        (lambda i: i.update(metadata=[1]), "metadata"),
    ],
)
def test_an_index_is_held_against_its_files(
    tmp_path: Path, change: Callable[[Any], Any], words: str
) -> None:
    write(tmp_path / "1.safetensors", {"a": ENTRY}, bytes(8))
    write(tmp_path / "2.safetensors", {"b": ENTRY}, bytes(8))
    index = {"metadata": {"total_size": 16}, "weight_map": {"a": "1.safetensors"}}
    index["weight_map"]["b"] = "2.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert wrong_total(tmp_path, tensor_files(tmp_path)) is None
    change(index)
    (tmp_path / INDEX).write_text(json.dumps(index))
    refuse(tmp_path, words)


def test_a_wrong_total_and_a_tensor_in_two_files_are_named(tmp_path: Path) -> None:
    write(tmp_path / "1.safetensors", {"a": ENTRY}, bytes(8))
    index = {"metadata": {"total_size": 9}, "weight_map": {"a": "1.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    total = wrong_total(tmp_path, tensor_files(tmp_path))
    assert total is not None
    assert "total_size is 9, the tensors have 8 bytes" in total
    write(tmp_path / "2.safetensors", {"a": ENTRY}, bytes(8))
    refuse(tmp_path, "a is in 1.safetensors, too")


def test_weights_that_are_no_plain_files_are_refused(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "is no folder")
    refuse(tmp_path, "there are no .safetensors files")
    os.mkfifo(tmp_path / "model.safetensors")
    refuse(tmp_path, "is a pipe, socket or device")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()
    refuse(tmp_path, "is a folder")
