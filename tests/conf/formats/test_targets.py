"""Which group a module belongs to."""

import pytest

from conf.formats.base.targets import group_of
from conf.formats.quant_args import QuantArgs, QuantGroup, QuantizationConfig

ARGS = QuantArgs("int", 4, "group", 128)


def config_of(**targets: list[str]) -> QuantizationConfig:
    groups = [QuantGroup(name, ARGS, targets=names) for name, names in targets.items()]
    return QuantizationConfig("compressed-tensors", groups)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ({"a": ["Linear"]}, "a"),
        ({"a": []}, "a"),
        ({"a": ["Linear"], "b": ["re:.*down_proj$"]}, "b"),
        ({"a": ["re:.*up_proj$"], "b": ["model.layers.1.mlp.down_proj"]}, "b"),
        ({"a": ["re:.*down_proj$"], "b": ["re:.*mlp.*"]}, "a"),
        ({"a": ["re:.*up_proj$"], "b": ["model.layers.10.mlp.down_proj"]}, None),
        ({}, None),
    ],
)
def test_a_name_comes_before_the_class(targets: dict[str, list[str]], expected: str | None) -> None:
    group = group_of(config_of(**targets), "model.layers.1.mlp.down_proj")
    assert (group.name if group else None) == expected


def test_a_group_without_weights_has_no_module() -> None:
    config = QuantizationConfig("compressed-tensors", [QuantGroup("a", None, targets=["Linear"])])
    assert group_of(config, "model.layers.1.mlp.down_proj") is None
