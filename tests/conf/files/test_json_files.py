"""Files that others wrote: whatever is wrong with one is a message with the file and the key."""

import os
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.files.json_files import read_object
from conf.models import read_config


def refuse(folder: Path, words: str) -> None:
    with pytest.raises(QuantlineError, match=words) as caught:
        read_config(folder)
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) == 1
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "config.json: is empty"),
        (b"{]", "config.json:1: no JSON"),
        (b"[]", "holds a list, a JSON object is expected"),
        (b"null", "holds null"),
        (b'{"a": {"b": [1, NaN]}}', r"a\.b\[1\] is nan, a finite number is expected"),
        (b'{"a": -Infinity}', "a is -inf"),
        (b'{"a": 1e400}', "a is inf"),
        (b'{"a": {"b": 1, "b": 2}}', "the key 'b' appears twice in an object"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"\\udc00": 1}', "half of a surrogate pair"),
        (b"\xef\xbb\xbf{}", "begins with a byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "is not UTF-8"),
        (b'{"a": "\xe9"}', "is not UTF-8"),
        (b'{"a": 1' + b"0" * 50 + b"}", "a is too large a number"),
        (b'{"a": 1' + b"0" * 9999 + b"}", "a number that is too large"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"hidden_size": "64"}', "hidden_size is '64'; should be a valid integer"),
        (b'{"hidden_size": true}', "hidden_size is True"),
        (b'{"vocab_size": 0}', "vocab_size is 0; should be greater than or equal to 1"),
        (b'{"num_hidden_layers": 1000000000}', "num_hidden_layers is 1000000000"),
        (b'{"rms_norm_eps": -1e-6}', "rms_norm_eps is -1e-06; should be greater than 0"),
        (b'{"rope_parameters": {"rope_theta": 0}}', r"rope_parameters\.rope_theta is 0"),
        (b'{"rope_scaling": [1]}', r"rope_scaling is \[1\]"),
        (b'{"text_config": []}', r"text_config is \[\]"),
        (b'{"text_config": {"hidden_size": -1}}', "text_config: hidden_size is -1"),
        (b'{"num_attention_heads": 4, "num_key_value_heads": 3}', "num_key_value_heads 3"),
        (b'{"dtype": "int8"}', "dtype is 'int8', choose one of"),
        (b'{"quantization_config": 3}', "quantization_config is 3"),
        (
            b'{"quantization_config": {"config_groups": {"a": {"weights": {"num_bits": null}},'
            b'"b": {"weights": {"num_bits": "8"}}}}}',
            r"quantization_config\.config_groups\.b\.weights\.num_bits is '8'",
        ),
        (b'{"quantization_config": {"ignore": [1]}}', r"quantization_config\.ignore\.0 is 1"),
    ],
)
def test_a_malformed_config_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    refuse(tmp_path, words)


def test_what_is_no_plain_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    refuse(tmp_path, "there is no config.json")
    path.mkdir()
    refuse(tmp_path, "is a folder, a file is expected")
    path.rmdir()
    os.mkfifo(path)
    refuse(tmp_path, "is a pipe, socket or device")
    path.unlink()
    path.symlink_to("nowhere.json")
    refuse(tmp_path, "is a link to nowhere.json, which is not there")
    path.unlink()
    path.symlink_to("config.json")
    refuse(tmp_path, "config.json")
    path.unlink()
    path.symlink_to("/etc/passwd")
    refuse(tmp_path, "is a link out of the folder, to /etc/passwd")


def test_links_of_a_hub_cache_and_within_a_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").write_text('{"hidden_size": 64}')
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    assert read_config(snapshot) == {"hidden_size": 64}
    (snapshot / "other.json").symlink_to("config.json")
    assert read_object(snapshot / "other.json") == {"hidden_size": 64}


def test_a_folder_whose_name_is_no_utf8_is_named_in_escapes(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    refuse(folder, r"\\xff: there is no config.json")


def test_unusual_but_sound_configs_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"time_step_limit": [0.0, Infinity], "intermediate_size": [64, 128], "head_dim": null,'
        ' "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding": null},'
        ' "pad_token_id": -1, "eos_token_id": [1, 2], "torch_dtype": "bfloat16"}'
    )
    assert read_config(tmp_path)["intermediate_size"] == [64, 128]
