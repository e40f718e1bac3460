"""A manifest cannot be emptied, lowered or edited to switch checks off."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf.errors import QuantlineError
from conf.schema.load import EngineConfig
from quantize.checkpoint import manifest
from quantize.checkpoint.verify import verify
from serve.checks import check
from tests.quantize.models.made import (
    Q,
    add_manifest,
    edit,
    make_checkpoint,
    make_original,
    rewrite,
)

FILE = manifest.FILE
NEWER = ("architecture", "published", "digest")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    folder = make_checkpoint(root / "int8", make_original(root / "original"), "int8")
    add_manifest(folder, root / "original")
    return folder


@pytest.fixture
def copy(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "copy"))


def lowered(schema: int) -> Callable[[dict[str, Any]], None]:
    """As an attacker would: every field that is newer is gone."""

    def change(content: dict[str, Any]) -> None:
        content["schema"] = schema
        for name in (*NEWER, *(("files",) if schema < 3 else ())):
            del content[name]

    return change


def as_older(schema: int) -> Callable[[dict[str, Any]], None]:
    """As an older version wrote it."""

    def change(content: dict[str, Any]) -> None:
        lowered(schema)(content)
        del content["proof"]["layers"]

    return change


def refuse(folder: Path, words: str) -> None:
    with pytest.raises(QuantlineError, match=words) as caught:
        verify(folder)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(files={}), "files is {}"),
        (lambda c: c.update(architecture={}), "architecture is {}"),
        (lambda c: c.update(published={}), "published is {}"),
        (lambda c: c["published"].update({"config.json": {}}), r"published\.config\.json"),
        (lambda c: c["published"].pop("config.json"), r"published\.config\.json"),
        (lambda c: c["files"].pop("config.json"), "files does not name config.json"),
        (lambda c: c["files"].pop("model.safetensors"), "files names no weights"),
        (lambda c: c["files"].update({"model.safetensors": ""}), "no SHA-256 hash"),
        (lambda c: c["files"].update({"../x": "0" * 64}), "files"),
        (lambda c: c.pop("proof"), "there is no proof"),
        (lambda c: c["proof"].update(formats={}), r"proof\.formats is {}"),
        (lambda c: c["proof"].update(faults=["x"]), r"proof\.faults"),
        (lambda c: c["proof"].update(tensors=-1), r"proof\.tensors is -1"),
        (lambda c: c.update(recipe_config={}), r"there is no recipe_config\.name"),
        (lambda c: c["recipe_config"].update(steps=[]), r"recipe_config\.steps"),
        (lambda c: c["recipe_config"].update(steps=["x"]), r"recipe_config\.steps\.0 is 'x'"),
        (lambda c: c["recipe_config"].update(targets=[]), r"recipe_config\.targets"),
        (lambda c: c["recipe_config"]["weights"].update(bits="8"), r"weights\.bits is '8'"),
        (lambda c: c["recipe_config"]["weights"].pop("bits"), r"recipe_config\.weights\.bits"),
        (lambda c: c.update(model_sha256=""), "model_sha256 is ''"),
        (lambda c: c.update(canary=None), "canary is None"),
        (lambda c: c.update(seconds={"save": -1}), r"seconds\.save is -1"),
        (lambda c: c.update(schema=True), "schema is True"),
        (lambda c: c.update(schema="4"), "schema is '4'"),
        (lambda c: c.update(schema=5), "schema is 5; known: 2, 3, 4"),
        (lambda c: c.pop("schema"), "schema is None"),
        (lambda c: c.update(schema=3), "'architecture' is not part of it|'digest'"),
        (lambda c: c.update(more=1), "'more' is not part of it"),
        (lowered(3), r"proof\.layers"),
        (lowered(2), r"proof\.layers"),
    ],
)
def test_nothing_can_be_removed_or_emptied(
    copy: Path, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    edit(copy / FILE, change, seal=not change.__qualname__.startswith("lowered"))
    refuse(copy, words)


def test_any_edit_shows(copy: Path) -> None:
    edit(copy / FILE, lambda content: content["recipe_config"].update(steps=["gptq"]))
    refuse(copy, "was edited after it was published, its digest differs")


def test_what_is_no_file_does_not_pass_as_no_manifest(copy: Path) -> None:
    (copy / FILE).unlink()
    assert verify(copy).faults == []
    (copy / FILE).symlink_to("nowhere")
    refuse(copy, "which is not there")
    (copy / FILE).unlink()
    os.mkfifo(copy / FILE)
    refuse(copy, "is a pipe")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda c: c["proof"].update(bytes=1), "proof.bytes is 1, the files have"),
        (lambda c: c["proof"].update(formats={"int4": 15}), "proof.formats is"),
        (lambda c: c["recipe_config"].update(steps=["sparsegpt", "gptq"]), "fewer than two zeros"),
        (lambda c: c["recipe_config"]["weights"].update(bits=4), "the recipe asks for 4"),
        (lambda c: c["recipe_config"]["weights"].update(type="float"), "recipe asks for float"),
        (lambda c: c["recipe_config"].update(kv_cache="fp8"), "the KV cache is not quantized"),
        (lambda c: c["architecture"].update(rms_norm_eps=1e-5), "the original has 1e-05"),
        (lambda c: c["architecture"].update(hidden_act="gelu"), "the original has 'gelu'"),
        (lambda c: c["architecture"].update(model_type="llama"), "config.json: model_type is"),
        (lambda c: c["files"].update({"more.json": "0" * 64}), "more.json is missing"),
    ],
)
def test_a_sealed_lie_is_held_against_the_files(
    copy: Path, change: Callable[[dict[str, Any]], Any], fault: str
) -> None:
    edit(copy / FILE, change, seal=True)
    assert any(fault in words for words in verify(copy).faults), verify(copy).faults


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("config.json", lambda c: c.update(hidden_act="gelu"), "hidden_act is 'gelu'"),
        ("config.json", lambda c: c.update(rms_norm_eps=1e-5), "rms_norm_eps is 1e-05"),
        ("config.json", lambda c: c["rope_parameters"].update(rope_theta=5e5), "rope_theta is"),
        ("config.json", lambda c: c.update(rope_theta=5e5), "it was published without it"),
        ("config.json", lambda c: c.update(use_sliding_window=True), "use_sliding_window is True"),
        ("config.json", lambda c: c.update(eos_token_id=7), "eos_token_id is 7"),
        ("config.json", lambda c: c.pop("hidden_act"), "hidden_act is gone"),
        ("config.json", lambda c: c.update(dtype="float16"), "dtype is 'float16'"),
        ("tokenizer_config.json", lambda c: c.update(add_bos_token=True), "add_bos_token is True"),
    ],
)
def test_fields_that_change_the_model_are_held_against_it(
    copy: Path, name: str, change: Callable[[dict[str, Any]], Any], fault: str
) -> None:
    edit(copy / name, change)
    assert any(f"{name}: " in words and fault in words for words in verify(copy).faults)
    with pytest.raises(QuantlineError, match=name) as caught:  # serve looks each time
        check(copy, copy, EngineConfig())
    assert caught.value.exit_code == 2


def test_words_context_and_template_may_be_edited(copy: Path) -> None:
    edit(copy / "config.json", lambda c: c.update(max_position_embeddings=64, use_cache=False))
    edit(copy / "tokenizer_config.json", lambda c: c.update(chat_template="{{ messages }}"))
    edit(copy / "generation_config.json", lambda c: c.update(temperature=0.5))
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    (copy / "README.md").write_text("ours")
    assert verify(copy).faults == []


def test_files_that_engines_read_may_not_be_added(copy: Path) -> None:
    (copy / "added_tokens.json").write_text("{}")
    (copy / "notes.txt").write_text("not read by anybody")
    assert verify(copy).faults == ["added_tokens.json was not published with the checkpoint"]


@pytest.mark.parametrize(("schema", "unproven"), [(3, 1), (2, 2)])
def test_older_manifests_are_read_and_say_what_they_cannot_prove(
    copy: Path, schema: int, unproven: int
) -> None:
    edit(copy / FILE, as_older(schema))
    assert verify(copy).faults == []
    assert len(manifest.unprovable(manifest.read(copy))) == unproven
    rewrite(copy, lambda tensors: tensors[f"{Q}.weight"][0, :2].add_(1))
    assert len(verify(copy).faults) == (schema == 3)


JUNK: list[Any] = [None, [], {}, "", "x", -1, 0, 1, 2**70, 0.5, 1e30, True, [1], {"a": 1}, "\ud800"]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a JSON value, with each key into it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    listed = []
    for key, part in inside:
        listed.append((value, key))
        listed += places(part) if isinstance(part, (dict, list)) else []
    return listed


def found(folder: Path) -> list[str]:
    """The faults, or the message of an input that cannot be read; other errors are raised."""
    try:
        return verify(folder).faults
    except QuantlineError as error:
        return [str(error)] if error.exit_code == 2 else []


@pytest.mark.parametrize("name", [FILE, "config.json", "tokenizer_config.json"])
def test_no_mutation_passes_or_crashes(published: Path, tmp_path: Path, name: str) -> None:
    """Seeded: a field somewhere is removed, or becomes something else."""
    chance = random.Random(name)
    free = ("transformers_version", "max_position_embeddings", "use_cache")
    folder = Path(shutil.copytree(published, tmp_path / "copy"))
    for _ in range(60):
        content = json.loads((published / name).read_text())
        place, key = chance.choice(places(content))
        before = place[key]
        if chance.random() < 0.3:
            del place[key]
        else:
            place[key] = chance.choice(JUNK)
        if key in free:
            continue
        if json.dumps(content) == json.dumps(json.loads((published / name).read_text())):
            continue
        (folder / name).write_text(json.dumps(content))
        assert found(folder), f"{name}: {key} was {before!r}"
