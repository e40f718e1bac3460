"""Adding a stored format is one new file, which everything else then knows."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import conf.formats
from conf.formats.base.stored_format import Machine
from conf.formats.base.tensors import Role
from conf.formats.quant_args import QuantArgs
from conf.formats.quantization_config import read_quantization
from conf.formats.registry import format_of_config, formats
from conf.formats.served import kernels, refusal, support
from evaluate.measure.roofline import cost
from quantize.checkpoint.verify.codes import is_readable
from quantize.checkpoint.verify.expected import expect
from quantize.checkpoint.verify.schemes import read_schemes
from serve.tensors import Tensor

MODULE = '''
from conf.formats.quant_args import QuantArgs, QuantGroup
from conf.formats.base.refusals import refuse_weights
from conf.formats.base.stored_format import KernelSupport, StoredFormat
from conf.formats.base.tensors import Role, StoredTensor


class Ternary(StoredFormat):
    """Four weights of -1, 0 or 1 in a byte, and a codebook."""

    name = "ternary"
    spellings = ("ternary-quantized",)
    methods = ("ternary",)
    packed_parts = ("weight_trits",)
    other_parts = ("weight_codebook",)
    marks = ("weight_trits",)

    def covers(self, weights, activations):
        return weights is not None and weights.type == "ternary"

    def fits(self, group):
        return group.weights is not None and group.weights.bits == 2

    def refusal(self, weights, activations):
        return None if weights.bits == 2 else refuse_weights("bits", "ternary weights have 2 bits")

    def read_other(self, method, content):
        return QuantGroup(method, QuantArgs("ternary", 2, "tensor"), format="ternary-quantized")

    def tensors(self, group, rows, columns):
        return {
            "weight_trits": StoredTensor(
                Role.CODES, ((rows, columns // 4),), ("U8",), encoding="trits"
            ),
            "weight_codebook": StoredTensor(Role.SCALE, ((3, 2),), ("F32",)),
        }

    def product(self, group):
        return "int8"

    def kernels(self, weights):
        return "TernaryMM everywhere"

    def support(self, weights, machine):
        return KernelSupport(True, "TernaryMM")


FORMAT = Ternary()
'''
ARCHITECTURE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
}
GROUPS = {
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "format": "ternary-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 2}}},
}
OTHER = {"quant_method": "ternary"}
TRITS = "model.layers.0.up.weight_trits"
H200 = Machine(9.0, "x86_64")


@pytest.fixture
def ternary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "ternary.py").write_text(MODULE)
    monkeypatch.setattr(conf.formats, "__path__", [*conf.formats.__path__, str(tmp_path)])
    yield
    sys.modules.pop("conf.formats.ternary", None)


class Model(torch.nn.Module):
    """One linear layer, as much of a model as the proof asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 32, bias=False)

    def get_output_embeddings(self) -> None:
        return None


def test_without_its_file_the_format_is_unknown() -> None:
    assert "ternary" not in [stored.name for stored in formats()]
    assert "not known here" in support(read_quantization(OTHER, "config.json"), H200).summary
    assert read_schemes({"quantization_config": GROUPS}, Model(), "config.json").faults


@pytest.mark.usefixtures("ternary")
@pytest.mark.parametrize("content", [GROUPS, OTHER])
def test_the_reader_the_kernels_and_the_roofline_know_it(content: dict[str, object]) -> None:
    config = read_quantization(content, "config.json")
    stored = format_of_config(config)
    assert stored is not None
    assert stored.name == "ternary"
    assert support(config, H200).summary == "TernaryMM"
    tensors = {
        TRITS: Tensor("U8", (32, 16)),
        "model.layers.0.up.weight_codebook": Tensor("F32", (3, 2)),
    }
    work = cost(tensors, ARCHITECTURE | {"quantization_config": content}, dtype_bytes=2)
    assert work is not None
    assert work.body_weights == 32 * 64
    assert work.product == "int8"


@pytest.mark.usefixtures("ternary")
def test_a_recipe_may_ask_for_it() -> None:
    weights = QuantArgs("ternary", 2, "tensor")
    assert kernels(weights, None) == "TernaryMM everywhere"
    assert refusal(weights, None) is None
    refused = refusal(QuantArgs("ternary", 3, "tensor"), None)
    assert refused is not None
    assert refused.reason == "ternary weights have 2 bits"


@pytest.mark.usefixtures("ternary")
def test_the_proof_expects_its_tensors_and_says_what_it_cannot_check() -> None:
    model = Model()
    schemes = read_schemes({"quantization_config": GROUPS}, model, "config.json")
    assert schemes.faults == []
    whole = expect(model, schemes)
    assert whole.tensors.keys() == {"up.weight_trits", "up.weight_codebook"}
    assert whole.tensors["up.weight_trits"].role is Role.CODES
    assert whole.tensors["up.weight_trits"].shapes == ((32, 16),)
    assert whole.linear[0].stored == "up.weight_trits"
    assert not is_readable(whole.linear[0])
