"""Every step of a recipe did something, to every layer it was meant for."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conf.errors import QuantlineError
from quantize.calibrate.step_check import check_steps
from tests.conftest import quantize_config


def recipe(*steps: str) -> Any:
    weights = [] if "gptq" in steps or "rounding" in steps else ["recipe.weights=null"]
    name = "sparse24" if weights else "w8a8_smooth_gptq"
    return quantize_config(f"recipe={name}", f"recipe.steps=[{','.join(steps)}]").recipe


def model_of(layers: int, quantized: bool) -> torch.nn.Module:
    """Layers with one projection each."""
    parts = [torch.nn.ModuleDict({"up_proj": torch.nn.Linear(4, 4)}) for _ in range(layers)]
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(parts)
    for part in parts if quantized else []:
        part["up_proj"].quantization_scheme = SimpleNamespace(weights=True)
    return model


UPS = ["layers.0.up_proj", "layers.1.up_proj"]
NORMS = ["layers.0.norm", "layers.1.norm"]


@pytest.mark.parametrize(
    ("steps", "scaled", "errors", "message"),
    [
        (["sparsegpt"], {}, {}, "sparsegpt changed no module"),
        (["sparsegpt"], {}, {UPS[0]: {"sgpt": 1.0}}, r"sparsegpt left out layers\.1\.up_proj"),
        (["sparsegpt"], {}, {name: {"gptq": 1.0} for name in UPS}, "sparsegpt changed no module"),
        (["gptq"], {}, {}, "gptq changed no module"),
        (["gptq"], {}, {UPS[1]: {"gptq": 1.0}}, r"gptq left out layers\.0\.up_proj"),
        (["smoothquant", "rounding"], {}, {}, "smoothquant found nothing to scale"),
        (["smoothquant", "rounding"], {"smoothquant": NORMS[:1]}, {}, "left out the layers 1"),
    ],
)
def test_a_step_that_did_nothing_fails_the_gate(
    steps: list[str],
    scaled: dict[str, list[str]],
    errors: dict[str, dict[str, float]],
    message: str,
) -> None:
    model = model_of(2, quantized="sparsegpt" not in steps)
    with pytest.raises(QuantlineError, match=message) as error:
        check_steps(model, recipe(*steps), scaled, errors, [])
    assert error.value.exit_code == 4


def test_steps_that_reached_every_layer_pass() -> None:
    both = {name: {"gptq": 1.0, "sgpt": 1.0} for name in UPS}
    check_steps(model_of(2, False), recipe("sparsegpt"), {}, both, [])
    smoothed = {"smoothquant": NORMS}
    check_steps(model_of(2, True), recipe("smoothquant", "gptq"), smoothed, both, [])
    with pytest.raises(QuantlineError, match="no module was quantized") as error:
        check_steps(model_of(2, False), recipe("rounding"), {}, {}, [])
    assert error.value.exit_code == 4


@pytest.mark.parametrize(("allowed", "fails"), [(0.4, True), (0.5, False)])
def test_too_many_fallbacks_of_gptq_fail_the_gate(allowed: float, fails: bool) -> None:
    limited = quantize_config("recipe=w4a16_gptq", f"recipe.gptq.max_fallback={allowed}").recipe
    errors = {name: {"gptq": 1.0} for name in UPS}
    if not fails:
        check_steps(model_of(2, True), limited, {}, errors, UPS[:1])
        return
    expected = rf"GPTQ could only round 1 of 2 modules, {UPS[0]} the first.*\(now {allowed}\)"
    with pytest.raises(QuantlineError, match=expected) as error:
        check_steps(model_of(2, True), limited, {}, errors, UPS[:1])
    assert error.value.exit_code == 4
