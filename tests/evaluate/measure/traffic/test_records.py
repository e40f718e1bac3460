"""Files as they lie on a disk: packed, cut off, damaged, linked, as tables."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from evaluate.measure.traffic import records
from evaluate.measure.traffic.conversation import Passage
from evaluate.measure.traffic.reader import read_conversations
from tests.evaluate.measure.traffic.files import PLAIN, chat, lines, one_turn


def test_packed_files_are_read(tmp_path: Path) -> None:
    one = json.dumps(PLAIN)
    for name, text in (("t.jsonl.gz", f"{one}\n{one}\n"), ("t.json.gz", f"[{one}, {one}]")):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        assert len(read_conversations(tmp_path / name)) == 2


def test_a_packed_file_that_is_cut_off_or_too_large_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text = tmp_path / "t.jsonl.gz", (json.dumps(PLAIN) + "\n").encode() * 99
    path.write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(QuantlineError, match=r"t\.jsonl\.gz: is no whole gzip file"):
        read_conversations(path)
    path.write_bytes(gzip.compress(text))
    monkeypatch.setattr(records, "LARGEST_FILE", 1000)
    with pytest.raises(QuantlineError, match="bytes, more than 1,000"):
        read_conversations(path)
    path.write_bytes(gzip.compress(b"[" + b" " * 2000))
    with pytest.raises(QuantlineError, match="bytes, more than 1,000"):
        read_conversations(path)


BAD = (b'{"input_tokens": 0}', b'{"input_tok', b'{"text": "\xff"}', b"[1]")


def test_bad_records_are_counted_or_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, good = tmp_path / "t.jsonl", json.dumps(PLAIN).encode()
    path.write_bytes(b"\n".join((good, *BAD, good)))
    with pytest.raises(QuantlineError) as error:
        read_conversations(path)
    assert str(error.value) == (
        f"{path}:2: input_tokens is 0; should be greater than or equal to 1 "
        "(4 of 6 records are bad; traffic.skip_bad=true leaves them out)"
    )
    assert len(read_conversations(path, skip_bad=True)) == 2
    assert (
        f"{path}: 4 of 6 records are bad: left out. The first one: {path}:2: input_tokens is 0"
        in (capfd.readouterr().err)
    )
    path.write_text(f'[{json.dumps(PLAIN)}, 1, {{"input_tokens": 0}}]')
    assert len(read_conversations(path, skip_bad=True)) == 1
    path.write_bytes(b'{"input_tokens": 0}\n{"input_tokens": 0}')
    with pytest.raises(QuantlineError, match=r"t\.jsonl:1: .* \(all 2 records are bad\)"):
        read_conversations(path, skip_bad=True)


def test_a_link_to_a_shared_disk_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "here").mkdir()
    lines(tmp_path / "disk" / "t.jsonl", PLAIN)
    link = tmp_path / "here" / "t.jsonl"
    link.symlink_to(tmp_path / "disk" / "t.jsonl")
    assert len(read_conversations(link)) == 1
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(QuantlineError, match="loop"):
        read_conversations(tmp_path / "loop")


def test_a_missing_file_a_folder_and_a_huge_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(QuantlineError, match=r"there is no t\.jsonl"):
        read_conversations(tmp_path / "t.jsonl")
    with pytest.raises(QuantlineError, match="is a folder, a file is expected"):
        read_conversations(tmp_path)
    path = lines(tmp_path / "t.jsonl", PLAIN, PLAIN)
    monkeypatch.setattr(records, "LARGEST_FILE", 10)
    with pytest.raises(QuantlineError, match="bytes, more than 10"):
        read_conversations(path)


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10

2023-11-16 18:17:04.4799600,110,27
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_tables_of_public_traces_are_read(
    tmp_path: Path, pack: Callable[[bytes], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("t.csv" if pack is bytes else "t.csv.gz")
    path.write_bytes(pack(b"\xef\xbb\xbf" + AZURE.replace("\n", "\r\n").encode()))
    first, second = read_conversations(path)
    assert first == one_turn(Passage(tokens=4808), 10, first.arrival_s)
    assert first.arrival_s == pytest.approx(1700158623.97996)
    assert second.arrival_s == pytest.approx(1700158624.47996)
    with pytest.raises(QuantlineError, match=r"time_unit=ms: .* has dates \(format azure\)"):
        read_conversations(path, unit="ms")
    path.write_bytes(pack(BURSTGPT.encode()))
    assert read_conversations(path) == [
        one_turn(Passage(tokens=472), 18, 5.0),
        one_turn(Passage(tokens=417), 276, 118.0),
    ]
    said = capfd.readouterr().err
    assert f"{path}: 1 of 3 records have no answer: left out" in said
    assert "texts that the format burstgpt does not read: Log Type, Model" in said
    path.write_bytes(pack(b"timestamp,input_tokens,output_tokens\n0,7,3\n1.5,8,3\n"))
    assert read_conversations(path)[1] == one_turn(Passage(tokens=8), 3, 1.5)
    path.write_bytes(pack(b'prompt,output_tokens\n"12, \n\n3",3\n42,4\n'))
    assert read_conversations(path)[0] == one_turn(Passage("12, \n\n3"), 3)


NUMBERS = "reads the column '{}' as a text, but it holds only numbers; call lengths of prompts"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (AZURE + "today,1,2\n", "t.csv:5: TIMESTAMP is 'today'; should be a date and time"),
        (AZURE + "2024-01-01 00:00:00,x,2\n", "t.csv:5: ContextTokens is 'x'; should be a valid"),
        (AZURE + "2024-01-01 00:00:00,1\n", "t.csv:5: there is no GeneratedTokens"),
        (AZURE + "2024-01-01 00:00:00,1,2,3\n", "t.csv:5: has more cells than columns"),
        (AZURE + "2024-01-01 00:00:00,1,0\n", "t.csv:5: GeneratedTokens is 0; should be greater"),
        ("a,b\n1,2\n", "t.csv:2: no known format has the keys a, b; traffic.format=NAME takes"),
        ("input_tokens,input_tokens\n1,2\n", "t.csv:1: the column 'input_tokens' appears twice"),
        ("\n\na,a\n1,2\n", "t.csv:3: the column 'a' appears twice"),
        (',a,"b\n"\n1,2,3\n', "t.csv:3: no known format has the keys column 1, a, b"),
        ('prompt,output_tokens\nHi,3\n"x,3\ny,3\n', "t.csv:3: no CSV (unexpected end of data)"),
        ("input,output_tokens_count\n220,80\n3e2,20\n", NUMBERS.format("input")),
        ("prompt\n42\n", NUMBERS.format("prompt")),
        ("prompt_0,prompt_1\n42,Hi\n43,you\n", NUMBERS.format("prompt_0")),
        ("timestamp,input,output\n0.5,220,80\n0.9,300,20\n", NUMBERS.format("input")),
        ("prompt,output\nHi,80\n", "t.csv:2: there is no output_tokens, but output: rename it"),
        ("prompt,num_decode_tokens\nHi,80\n", "no output_tokens, but num_decode_tokens: rename"),
        ("timestamp,input_tokens,output_tokens\n1e999,7,3\n", "timestamp is '1e999'; should be"),
        ("prompt,output_tokens\n", "t.csv: has no request with a prompt and an answer"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(QuantlineError) as error:
        read_conversations(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


PANDAS = """
,,
,timestamp,input_tokens,output_tokens,,input_cost
0,1700000000000000000,7,3,,0.5
1,1700000000500000000,8,3,,.25
,,,,,
"""


def test_tables_of_pandas_are_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(PANDAS)
    assert read_conversations(path, unit="ns") == [
        one_turn(Passage(tokens=7), 3, 1.7e9),
        one_turn(Passage(tokens=8), 3, 1.7e9 + 0.5),
    ]
    assert not capfd.readouterr().err
    path.write_text(",prompt,output_tokens,\na,Hi,3,\nb,42,3,\n")
    assert [each.turns[0].prompt[0].text for each in read_conversations(path)] == ["Hi", "42"]
    assert "the format vllm does not read: column 1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("1e-05", 1e-05),
        ("2.5E+1", 25.0),
        ("0.30000000000000004", 0.30000000000000004),
        ("0.1234567890123456789", 0.12345678901234568),
        ("1700000000.123456789", 1700000000.123456789),
        ("1700000000000000000", 1.7e18),
        ("1700000000.0", 1.7e9),
        (" 5 ", 5.0),
        (".5", 0.5),
        ("+5", 5.0),
    ],
)
def test_all_numbers_of_tables_are_read(tmp_path: Path, cell: str, expected: float) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"timestamp,input_tokens,output_tokens\n{cell},7,3\n")
    assert read_conversations(path) == [one_turn(Passage(tokens=7), 3, expected)]


def test_a_format_that_is_named_is_told_which_cells_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens,context_cost\n20231116,7,3,0.5\n")
    assert read_conversations(path) == [one_turn(Passage(tokens=7), 3, 1700092800.0)]


@pytest.mark.parametrize(
    "name", ["T.CSV", "t.csv", "t.Csv.GZ", "a.jsonl.csv", "t.csv.1", "t.csv.txt"]
)
def test_a_table_is_told_by_its_last_suffix(tmp_path: Path, name: str) -> None:
    content = b"input_tokens,output_tokens\n7,3\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("GZ") else content)
    assert read_conversations(path) == [one_turn(Passage(tokens=7), 3)]
    for other in ("a.csv.jsonl", "a.csv.json", "a.csv.jsonl.1"):
        assert read_conversations(lines(tmp_path / other, PLAIN)) == [
            one_turn(Passage(tokens=7), 3)
        ]


@pytest.mark.parametrize(
    ("content", "prompt", "tokens"),
    [
        ("input_tokens, output_tokens\n7, 3\n", Passage(tokens=7), 3),
        ("input_tokens ,output_tokens \n7 ,3 \n", Passage(tokens=7), 3),
        ("input_tokens,output_tokens\n7, 3\n", Passage(tokens=7), 3),
        ("input_tokens,output_tokens\n7.0,3.0\n", Passage(tokens=7), 3),
        ("input_tokens,output_tokens\n7,  \n", Passage(tokens=7), None),
        ('"output_tokens", "prompt"\n3, "Hi, you"\n', Passage("Hi, you"), 3),
        ('output_tokens,prompt\n3, "Hi, you"\n', Passage("Hi, you"), 3),
        ("output_tokens,prompt\n3, Hi\n", Passage(" Hi"), 3),  # a text may begin with a space
        ('output_tokens,prompt\n3,"a, ""b"""\n', Passage('a, "b"'), 3),
        ('prompt,output_tokens\n"Hi" ,3\n', Passage("Hi "), 3),
        ('prompt,output_tokens\n"Hi ,\n""you""" ,"3" \n', Passage('Hi ,\n"you" '), 3),
        ('"prompt" ,output_tokens\n"Hi",3\n', Passage("Hi"), 3),
        ("prompt,output_tokens\n42,3\n", Passage("42"), 3),
        ("prompt,prompt_tokens\n42,1\n", Passage("42"), None),
    ],
)
def test_spaces_and_numbers_of_tables_are_read(
    tmp_path: Path, content: str, prompt: Passage, tokens: int | None
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    assert read_conversations(path) == [one_turn(prompt, tokens)]


def test_a_prefix_may_be_a_number(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("prompt,system,output_tokens\nHi,9,80\nyou,8,20\n")
    assert [each.turns[0].prompt[0] for each in read_conversations(path)] == [
        Passage("9"),
        Passage("8"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b'{"id": 3}\n{"prompt": "Hi"}\n', "t.jsonl:1: no known format has the keys id"),
        ("t.json", b'[{"id": 3}, {"prompt": "Hi"}]', "record 1: no known format has the keys id"),
        ("t.csv", b"prompt\ncaf\xe9\nHi\n", "t.csv:2: is not UTF-8 (byte 3)"),
        ("t.csv", b'prompt\n"caf\xe9\n\xe9"\nHi\n', "t.csv:2: is not UTF-8 (byte 4)"),
        (
            "t.json",
            b'[{"prompt": "caf\xe9"}, {"prompt": "Hi"}]',
            "record 1: is not UTF-8 (byte 15)",
        ),
        ("t.csv", b"prompt\na,b\nHi\n", "t.csv:2: has more cells than columns"),
        ("t.csv", b'prompt\n"a"b\nHi\n', "t.csv:2: no CSV (',' expected after"),
        ("t.csv", b'prompt\nHi\n"a\xe9', "t.csv:3: no CSV (unexpected end of data)"),
    ],
)
def test_a_bad_record_of_any_kind_is_left_out(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    message: str,
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(QuantlineError) as error:
        read_conversations(path)
    assert message in str(error.value)
    assert "(1 of 2 records are bad; traffic.skip_bad=true leaves them out)" in str(error.value)
    assert read_conversations(path, skip_bad=True) == [one_turn(Passage("Hi"))]
    assert "1 of 2 records are bad: left out" in capfd.readouterr().err


def test_a_file_of_no_known_format_is_refused_whole(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", {"a": 1}, {"b": 1})
    with pytest.raises(QuantlineError, match=r"keys a; .* \(all 2 records are bad\)"):
        read_conversations(path, skip_bad=True)


def test_a_long_prompt_in_a_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"prompt,output_tokens\n{'x' * 200_000},3\n")
    usual = csv.field_size_limit()
    assert read_conversations(path) == [one_turn(Passage("x" * 200_000), 3)]
    assert csv.field_size_limit() == usual


def test_files_of_windows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    one = json.dumps(PLAIN)
    for text in (f"{one}\r\n{one}\r\n", f"[{one},\r\n{one}]\r\n"):
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert len(read_conversations(path)) == 2


def test_what_precedes_a_cut_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([chat("Hi", "Hello"), chat("A", "B")])[:-9])
    assert len(read_conversations(path, "sharegpt", may_be_cut=True)) == 1
