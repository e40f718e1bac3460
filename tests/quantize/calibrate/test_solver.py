"""GPTQ's error: that of a module's output, relative to the output."""

from functools import partial

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight

from quantize.calibrate.solver import quantize_keeping_zeros, with_output_error

ROWS, COLUMNS, TOKENS = 24, 32, 256


@pytest.mark.parametrize("solve", [quantize_weight, quantize_keeping_zeros])
@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_the_error_is_that_of_the_output(solve, size: float) -> None:
    """As computed from the inputs themselves, whatever the size of weights and inputs."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, ROWS, COLUMNS, generator=generator) * size
    inputs = torch.randn(2, COLUMNS, TOKENS, generator=generator) * size
    scales = weights.abs().amax(-1, keepdim=True) / 7
    quantized, errors, fell_back = partial(with_output_error, solve)(
        weights=weights.clone(),
        hessians=2 * inputs @ inputs.mT / TOKENS,
        scale=scales,
        zero_point=torch.zeros_like(scales),
        global_scale=None,
        quant_args=QuantizationArgs(num_bits=4, strategy="channel", symmetric=True),
    )
    lost, whole = (weights - quantized) @ inputs, weights @ inputs
    expected = lost.flatten(1).norm(dim=1) / whole.flatten(1).norm(dim=1)
    assert errors.tolist() == pytest.approx(expected.tolist(), rel=1e-3)
    assert (errors > 0.01).all()
    assert (errors < 0.5).all()
    assert not fell_back.any()


def test_a_module_that_answers_nothing_has_no_error() -> None:
    zero = torch.zeros(1, ROWS, COLUMNS)
    answer = zero.clone(), torch.ones(1), torch.zeros(1, dtype=torch.bool)
    _, errors, _ = with_output_error(
        lambda **_: answer, weights=zero, hessians=torch.eye(COLUMNS).unsqueeze(0)
    )
    assert errors.tolist() == [0]
