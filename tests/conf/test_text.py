"""Text: sources, the two parts, and complaints that name file and line."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants

from conf import text as text_module
from conf.errors import QuantlineError
from conf.schema.text import TextSource
from conf.text import Document, check_hub_set, documents, python_docs

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def everything(source: TextSource) -> list[Document]:
    return [*documents(source, "calibration"), *documents(source, "evaluation")]


def paragraphs(texts: list[Document]) -> set[str]:
    found = (part.strip() for text in texts for part in re.split(r"\n\s*\n", str(text)))
    return {part for part in found if len(part) >= 60}


def test_calibration_and_evaluation_share_no_paragraph() -> None:
    calibration = list(documents(TextSource(), "calibration"))
    evaluation = list(documents(TextSource(), "evaluation"))
    assert len(calibration) > 100
    assert len(evaluation) > 40
    assert paragraphs(calibration) & paragraphs(evaluation) == set()


def test_the_parts_do_not_depend_on_the_seed() -> None:
    one = list(documents(TextSource(), "evaluation", seed=1))
    two = list(documents(TextSource(), "evaluation", seed=2))
    assert one != two
    assert sorted(map(str, one)) == sorted(map(str, two))


def test_a_seed_gives_one_order() -> None:
    first = list(documents(TextSource(), "calibration", seed=7))
    assert first == list(documents(TextSource(), "calibration", seed=7))


def test_python_docs_lose_no_paragraph() -> None:
    from pydoc_data.topics import topics

    assert paragraphs(list(python_docs())) == paragraphs(list(topics.values()))


def test_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("first one\nsame document\n\nsecond one\n\n\n")
    found = everything(TextSource(source="file", path=str(path)))
    assert sorted(map(str, found)) == ["first one\nsame document\n\nsecond one"]


def test_jsonl_with_a_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"body": f"text {i}"}) for i in range(50)))
    source = TextSource(source="file", path=str(path), column="body")
    assert sorted(map(str, everything(source))) == sorted(f"text {i}" for i in range(50))


def test_parquet_with_chats(tmp_path: Path) -> None:
    path = tmp_path / "chats.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"messages": [CHAT]}), path)
    source = TextSource(source="file", path=str(path), column="messages", chat=True)
    assert everything(source) == [CHAT]


def test_a_question_and_its_answer_are_a_chat(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"ask": "Hi", "say": "Hello"}))
    source = TextSource(source="file", path=str(path), column="ask", answer_column="say")
    assert everything(source) == [CHAT]


def test_a_hub_set_is_read_through_datasets(tmp_path: Path) -> None:
    """A local folder stands in for the hub: the code that loads it is the same."""
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [json.dumps({"text": f"row {i}"}) for i in range(40)]
    (folder / "train.jsonl").write_text("\n".join(rows))
    source = TextSource(source="hub", id=str(folder))
    assert sorted(map(str, everything(source))) == sorted(f"row {i}" for i in range(40))


@pytest.mark.parametrize(
    ("name", "content", "source", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{oops\n', {}, "a.jsonl:2: no JSON"),
        ("a.jsonl", '{"text": "x"}\n[1]\n', {}, "a.jsonl:2: an object is needed"),
        ("a.jsonl", '{"txt": "x"}\n', {}, r"a.jsonl:1: .*'text'. Did you mean txt\?"),
        ("a.jsonl", '{"text": 3}\n', {}, "a.jsonl:1: text should be a text and is int"),
        ("a.jsonl", '{"text": ["x"]}\n', {"chat": True}, "a.jsonl:1: a chat is a list of turns"),
        ("a.txt", "x", {"chat": True}, "a text file holds no chats"),
        ("a.doc", "x", {}, r"there is no '.doc'.* Known: .jsonl, .parquet, .txt"),
        ("a.parquet", "x", {}, "no parquet file"),
        ("a.jsonl", '{"text": "x", "text": "y"}', {}, "a.jsonl:1: the key 'text' appears twice"),
        ("a.jsonl", "[" * 10**5, {}, "a.jsonl:1: is nested too deeply"),
        ("a.jsonl", f'{{"n": {"9" * 5000}}}', {}, "a.jsonl:1: holds a number that is too large"),
        ("a.jsonl", r'{"text": "\ud800"}', {}, "a.jsonl:1: text holds half of a surrogate pair"),
        (
            "a.jsonl",
            '{"text": [{"role": "user", "content": null}]}',
            {"chat": True},
            "a.jsonl:1: content of turn 1 should be a text and is NoneType",
        ),
        (
            "a.jsonl",
            '{"text": "x", "answer": null}',
            {"answer_column": "answer"},
            "a.jsonl:1: answer should be a text and is NoneType",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    tmp_path: Path, name: str, content: str, source: dict[str, Any], message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(QuantlineError, match=message) as error:
        everything(TextSource(source="file", path=str(path), **source))
    assert error.value.exit_code == 2


def test_parquet_with_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pyarrow.array([b"fine", b"\xff\xfe"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    with pytest.raises(QuantlineError, match=r"a.parquet: holds a text that is not UTF-8"):
        everything(TextSource(source="file", path=str(path)))


def test_only_the_texts_column_of_parquet_is_read(tmp_path: Path) -> None:
    """Python has no date in the year 35 million."""
    path = tmp_path / "a.parquet"
    times = pyarrow.array([2**50], pyarrow.timestamp("s"))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"], "time": times}), path)
    assert everything(TextSource(source="file", path=str(path))) == ["x"]
    with pytest.raises(QuantlineError, match=r"a.parquet: .*'txt'. Did you mean text\?"):
        everything(TextSource(source="file", path=str(path), column="txt"))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("first", encoding="utf-8-sig")
    assert everything(TextSource(source="file", path=str(path))) == ["first"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(QuantlineError, match="there is no file"):
        everything(TextSource(source="file", path=str(tmp_path / "none.txt")))


def test_a_set_that_the_hub_does_not_give_is_a_fault_of_the_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(QuantlineError, match=r"accuracy\.text\.id=no/such_set") as error:
        everything(TextSource(source="hub", id="no/such_set"))
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("proxies", "endpoint", "is_offline"),
    [
        ({}, "https://hub.invalid", True),
        ({"https": "http://proxy:3128"}, "https://hub.invalid", False),
        ({"no": "localhost"}, "https://hub.invalid", True),
        ({}, "https://localhost", False),
    ],
)
def test_without_an_address_of_the_hub_its_cache_is_read(
    proxies: dict[str, str], endpoint: str, is_offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`datasets` would try to reach it for 23 s. A proxy may know the address."""
    seen = []

    def load_dataset(*arguments: object, **options: object) -> datasets.IterableDataset:
        seen.append((datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE))
        return datasets.Dataset.from_dict({"text": ["x"]}).to_iterable_dataset()

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(text_module, "getproxies", lambda: proxies)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    check_hub_set(TextSource(source="hub", id="org/set"))
    assert seen == [(is_offline, is_offline)]
    assert [datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE] == [False, False]


def test_a_set_of_a_hub_without_an_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    for module in (constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(text_module, "getproxies", dict)
    with pytest.raises(QuantlineError, match=r"accuracy\.text\.id=org/set: cannot be") as error:
        check_hub_set(TextSource(source="hub", id="org/set"))
    assert error.value.exit_code == 3
    assert "https://hub.invalid has no address here; looking for the set in the cache" in (
        capsys.readouterr().err
    )
