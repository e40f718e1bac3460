"""The option engine.kernels."""

import pytest

from conf.compose import compose
from conf.errors import QuantlineError
from conf.schema.kernels import AUTOMATIC
from evaluate.command import COMMAND


@pytest.mark.parametrize(
    ("overrides", "families", "second_layout"),
    [
        ([], AUTOMATIC, None),
        (["engine.kernels=[overlap,sparse]"], ("sparse", "overlap"), None),
        (["engine.kernels=auto"], AUTOMATIC, None),
        (["engine.kernels=vllm"], (), None),
        (["engine.kernels=sparse"], ("sparse",), None),
        (["engine.kernels=[sparse,one_token]"], ("one_token", "sparse"), None),
        (["engine.kernels=auto", "engine.kernels.second_layout=false"], AUTOMATIC, False),
    ],
)
def test_forms(overrides: list[str], families: tuple[str, ...], second_layout: bool | None) -> None:
    kernels = compose(COMMAND, overrides).engine.kernels
    assert kernels.chosen == families
    assert kernels.second_layout is second_layout


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.kernels=one_tokn", "Did you mean one_token?"),
        ("engine.kernels=[sparse,vlm]", "Did you mean vllm?"),
        ("engine.kernels=[auto,sparse]", "auto stands alone"),
        ("engine.kernels=[]", "the list is empty"),
        ("engine.kernels=[batched,sparse]", "batched needs weight_only"),
        ("engine.kernels.second=false", "Did you mean engine.kernels.second_layout?"),
        ("engine.kernels.second_layout=2.5", "second_layout"),
    ],
)
def test_a_wrong_value_gets_a_suggestion(override: str, message: str) -> None:
    with pytest.raises(QuantlineError, match="kernels") as error:
        compose(COMMAND, [override])
    assert message in str(error.value)
