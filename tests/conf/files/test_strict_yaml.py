"""YAML files that people write: every fault is one message with the file and the line."""

from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.files import strict_yaml


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("!!bool maybe", "'maybe' is no bool"),
        ("!!timestamp soon", "'soon' is no timestamp"),
        ('!!int ""', "'' is no int"),
        ('!!float ""', "'' is no float"),
        ("2020-13-45", "'2020-13-45' is no timestamp"),
        ("0x_", "'0x_' is no int"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_named_with_its_line(
    tmp_path: Path, value: str, message: str
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"first: 1\nsecond: [{value}]\n")
    with pytest.raises(QuantlineError, match=f"r.yaml:2: no YAML .{message}") as error:
        strict_yaml.read(path)
    assert error.value.exit_code == 2
