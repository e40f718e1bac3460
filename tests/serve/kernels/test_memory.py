"""Memory of further layouts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from conf.errors import QuantlineError
from conf.files.stored_tensor import Tensor
from conf.formats.quant_args import (
    Codebooks,
    QuantArgs,
    QuantGroup,
    QuantizationConfig,
    vector_args,
)
from conf.schema.kernels import KernelsConfig
from serve import fit as fit_module
from serve.fit import fit
from serve.kernels.linear.catalog import FP8 as FP8_PRODUCTS
from serve.kernels.linear.catalog import INT8 as INT8_PRODUCTS
from serve.kernels.linear.catalog import PACKED as PACKED_PRODUCTS
from serve.kernels.linear.catalog import PACKED_FP8, VLLM, Place
from serve.kernels.memory import FURTHER_LAYOUTS, copying_families, extra_bytes
from serve.kernels.settings import Settings, with_kernels

INT4 = QuantArgs("int", 4, "group", group_size=128)
FP8 = QuantArgs("float", 8, "token")
W4A16 = QuantizationConfig("compressed-tensors", [QuantGroup("g", INT4)])
W4AFP8 = QuantizationConfig("compressed-tensors", [QuantGroup("g", INT4, FP8)])
PACKED = {
    "layers.0.up.weight_packed": Tensor("I32", (64, 16)),
    "layers.0.up.weight_scale": Tensor("BF16", (64, 1)),
    "layers.0.experts.3.up.weight_packed": Tensor("I32", (64, 16)),
    "embed.weight": Tensor("BF16", (100, 64)),
}
WORDS_AND_SCALES = 64 * 16 * 4 + 64 * 2
INT8 = {"layers.0.up.weight": Tensor("I8", (64, 64)), "norm.weight": Tensor("BF16", (64,))}


@pytest.mark.parametrize(
    ("quantization", "families", "second_layout", "extra"),
    [
        (W4A16, ["auto"], True, 3 * WORDS_AND_SCALES),
        (W4A16, ["auto"], False, 0),
        (W4A16, ["vllm"], True, 0),
        (W4A16, ["w4afp8"], True, 0),
        (W4AFP8, ["w4afp8"], True, 4 * WORDS_AND_SCALES),
        (W4AFP8, ["weight_only"], True, 0),
    ],
)
def test_packed_weights_have_further_layouts(
    quantization: QuantizationConfig, families: list[str], second_layout: bool, extra: int
) -> None:
    settings = Settings.of(KernelsConfig(families, second_layout))
    assert extra_bytes(PACKED, quantization, settings, False) == extra


UP, DOWN = "layers.0.up", "layers.0.down"
MIXED = {
    f"{UP}.weight_packed": Tensor("I32", (64, 16)),
    f"{DOWN}.weight": Tensor("I8", (64, 64)),
}
W8A8 = QuantGroup(
    "8", QuantArgs("int", 8, "channel"), QuantArgs("int", 8, "token"), [f"re:.*{DOWN}"]
)


@pytest.mark.parametrize("activations", [None, FP8])
@pytest.mark.parametrize("is_pruned", [False, True])
@pytest.mark.parametrize("families", [["auto"], ["weight_only"], ["w4afp8"], ["sparse"]])
def test_formats_in_one_checkpoint_are_counted_by_the_group_of_each_layer(
    activations: QuantArgs | None, is_pruned: bool, families: list[str]
) -> None:
    config = QuantizationConfig(
        "compressed-tensors", [W8A8, QuantGroup("4", INT4, activations, [UP])]
    )
    settings = Settings.of(KernelsConfig(families, True))
    packed = "w4afp8" if activations is not None else "weight_only"
    copying = {packed, *(["sparse"] if is_pruned else [])} & set(settings.families)
    assert copying_families(MIXED, config, settings, is_pruned) == copying
    extra = {"weight_only": 3 * 64 * 64, "w4afp8": 4 * 64 * 64, "sparse": 3 * 10 / 16 * 64 * 64}
    expected = sum(extra[family] for family in copying)
    assert extra_bytes(MIXED, config, settings, is_pruned) == expected


def test_where_targets_do_not_tell_the_most_copies_are_counted() -> None:
    groups = [QuantGroup("a", INT4, None, ["b"]), QuantGroup("c", INT4, FP8, ["d"]), W8A8]
    settings = Settings.of(KernelsConfig(["auto"], True))
    unknown = QuantizationConfig("compressed-tensors", groups)
    assert extra_bytes(PACKED, unknown, settings, False) == 4 * WORDS_AND_SCALES
    without = QuantizationConfig("compressed-tensors", [groups[0], W8A8])
    assert extra_bytes(PACKED, without, settings, False) == 3 * WORDS_AND_SCALES


@pytest.mark.parametrize(
    ("families", "second_layout", "is_pruned", "share"),
    [
        (["auto"], True, True, 3 * 10 / 16),
        (["sparse"], False, True, 0),
        (["one_token"], True, True, 0),
        (["auto"], True, False, 0),
    ],
)
def test_a_sparse_weight_has_three_compressed_layouts(
    families: list[str], second_layout: bool, is_pruned: bool, share: float
) -> None:
    settings = Settings.of(KernelsConfig(families, second_layout))
    assert extra_bytes(INT8, None, settings, is_pruned) == 64 * 64 * share


@pytest.mark.parametrize(
    ("activations", "families", "extra"),
    [(None, ["auto"], 3 * 512 * 64), (None, ["one_token"], 0), (FP8, ["auto"], 0)],
)
def test_an_fp8_head_with_activations_of_16_bit_may_be_copied(
    activations: QuantArgs | None, families: list[str], extra: int
) -> None:
    head = QuantGroup("h", QuantArgs("float", 8, "channel"), activations, ["re:.*lm_head$"])
    body = QuantGroup("b", QuantArgs("float", 8, "channel"), FP8, [UP])
    config = QuantizationConfig("compressed-tensors", [body, head])
    tensors = {name: Tensor("F8_E4M3", (512, 64)) for name in ("lm_head.weight", f"{UP}.weight")}
    settings = Settings.of(KernelsConfig(families, True))
    assert extra_bytes(tensors, config, settings, False) == extra


def test_fit_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(monkeypatch, W4A16)
    monkeypatch.setattr(fit_module, "tensors", lambda _: PACKED)
    with_copy = fit(tmp_path, with_kernels({}, KernelsConfig(["auto"]))).weights_gib
    without = fit(
        tmp_path, with_kernels({}, KernelsConfig(["auto"], second_layout=False))
    ).weights_gib
    assert (with_copy - without) * 2**30 == pytest.approx(3 * WORDS_AND_SCALES)
    assert fit(tmp_path, {}).weights_gib == without


def test_fit_counts_zeros_that_no_manifest_tells_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a checkpoint that another tool has made: the engine looks at the weights."""
    weight = torch.randint(1, 100, (64, 16, 4), dtype=torch.int8)
    weight[..., ::2] = 0
    save_file({"layers.0.up.weight": weight.view(64, 64)}, tmp_path / "model.safetensors")
    on_gpu(monkeypatch, None)

    def weights_gib(*families: str) -> float:
        options = with_kernels({}, KernelsConfig(list(families), second_layout=True))
        return fit(tmp_path, options).weights_gib

    difference = (weights_gib("auto") - weights_gib("one_token")) * 2**30
    assert difference == pytest.approx(64 * 64 * 3 * 10 / 16)


def test_fit_counts_wider_numbers_of_codebooks_for_any_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = QuantGroup("g", vector_args(Codebooks(4, 4096)), targets=["layers.0.up"])
    on_gpu(monkeypatch, QuantizationConfig("vptq", [books]))
    stored = {"layers.0.up.indices": Tensor("I32", (1, 1024, 1536))}
    monkeypatch.setattr(fit_module, "tensors", lambda _: stored)
    for families in (["vllm"], ["auto"]):
        weights = fit(tmp_path, with_kernels({}, KernelsConfig(families))).weights_gib
        assert weights * 2**30 * 8 == pytest.approx(4096 * 4096 * 3.25)


def on_gpu(monkeypatch: pytest.MonkeyPatch, quantization: QuantizationConfig | None) -> None:
    """An empty GPU of 80 GiB, and a model of two layers."""
    config = {"max_position_embeddings": 1024, "num_hidden_layers": 2}
    monkeypatch.setattr(fit_module, "read_config", lambda _: config)
    monkeypatch.setattr(fit_module, "quantization_of", lambda _: quantization)
    monkeypatch.setattr(fit_module, "kv_token_bytes", lambda *_: 1024.0)
    monkeypatch.setattr(fit_module, "gpu_memory_gib", lambda: [(80.0, 80.0)])


@pytest.mark.parametrize(("card", "keeps"), [(24.0, False), (36.0, False), (40.0, True)])
def test_a_checkpoint_that_fits_without_copies_is_served_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: float, keeps: bool
) -> None:
    """5 GiB of weights; copies take 15, which may be half of what is left of 90 % of the card."""
    words = {"layers.0.up.weight_packed": Tensor("I32", (5 * 2**30 // 4, 1))}
    on_gpu(monkeypatch, W4A16)
    monkeypatch.setattr(fit_module, "tensors", lambda _: words)
    monkeypatch.setattr(fit_module, "gpu_memory_gib", lambda: [(card, card)])
    auto = fit(tmp_path, with_kernels({}, KernelsConfig()))
    assert auto.weights_gib == pytest.approx(20 if keeps else 5)
    monkeypatch.setattr(fit_module, "gpu_memory_gib", lambda: [(20.0, 20.0)])
    with pytest.raises(QuantlineError, match="Take a smaller format"):
        fit(tmp_path, with_kernels({}, KernelsConfig(second_layout=True)))


def test_no_family_has_more_layouts_than_are_counted() -> None:
    def further(*places: Place) -> int:
        return len({place.layout for place in places}) - 1

    marlin, machete, w4a8 = (place for place in VLLM if place.module == "from_vllm.packed")
    packed = [place for of_family in PACKED_PRODUCTS.values() for place in of_family]
    (unpack_fp8,) = PACKED_FP8.values()
    assert FURTHER_LAYOUTS["weight_only"] == further(marlin, machete, *packed)
    assert FURTHER_LAYOUTS["w4afp8"] == further(w4a8, marlin, machete, *unpack_fp8)
    for products, own in ((INT8_PRODUCTS, VLLM[0]), (FP8_PRODUCTS, VLLM[1])):
        places = [place for of_family in products.values() for place in of_family]
        assert FURTHER_LAYOUTS["sparse"] == further(own, *places)
