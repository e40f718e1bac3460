"""A tokenizer.json that holds no tokenizer is bad input, also where the library panics."""

import json
import re
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.files.tokenizer_file import read_tokenizer
from tests.conf.files.made_tokenizers import PREFIX_LONGER_THAN_TOKENS


@pytest.mark.parametrize("content", [{}, {"model": 1}, [], PREFIX_LONGER_THAN_TOKENS])
def test_what_holds_no_tokenizer_is_bad_input(content: object, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    expected = f"^{re.escape(str(path))}: is no tokenizer: "
    with pytest.raises(QuantlineError, match=expected) as error:
        read_tokenizer(path)
    assert error.value.exit_code == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(QuantlineError, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path / "tokenizer.json")
