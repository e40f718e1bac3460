"""Without a manifest, everything that the files themselves show is named."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conf.errors import QuantlineError
from conf.formats.quant_args import QuantArgs
from quantize.checkpoint.verify import verify
from quantize.checkpoint.verify.codes import Groups, _constant_faults
from tests.quantize.models.made import (
    FORMATS,
    Q,
    Tensors,
    edit,
    make_checkpoint,
    make_original,
    rewrite,
)

DOWN, NORM, EMBEDDING = (
    "model.layers.1.mlp.down_proj",
    "model.norm.weight",
    "model.embed_tokens.weight",
)


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Checkpoints by family and format, made once."""
    root = tmp_path_factory.mktemp("micro")

    def get(form: str, family: str = "qwen3") -> Path:
        original = root / family
        if not original.is_dir():
            make_original(original, family, tied=family == "qwen3")
        folder = root / f"{family}-{form}"
        if form != "original" and not folder.is_dir():
            make_checkpoint(folder, original, form, cache=form == "fp8")
        return original if form == "original" else folder

    return get


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("form", [*FORMATS, "original"])
def test_sound_ones_pass(micro: Callable[..., Path], form: str, family: str) -> None:
    proof = verify(micro(form, family))
    assert proof.faults == []
    assert proof.layers == sum(proof.formats.values()) == 15


def scaled(name: str, factor: float) -> Callable[[Tensors], None]:
    return lambda t: t.update({name: (t[name].double() * factor).to(t[name].dtype)})


def cast(name: str, dtype: torch.dtype) -> Callable[[Tensors], None]:
    return lambda t: t.update({name: t[name].to(dtype)})


def reshaped(name: str, *shape: int) -> Callable[[Tensors], None]:
    return lambda t: t.update({name: t[name].reshape(shape).clone()})


def put(name: str, *values: float, dtype: torch.dtype = torch.float32) -> Any:
    return lambda t: t.update({name: torch.tensor(values, dtype=dtype)})


SCALE = f"{Q}.weight_scale"


@pytest.mark.parametrize(
    ("form", "change", "fault"),
    [
        ("int8", scaled(SCALE, -1), f"{SCALE} holds negative scales"),
        ("int8", lambda t: t[SCALE][3].neg_(), f"{SCALE} holds negative scales"),
        ("int8", scaled(SCALE, 0), f"{SCALE} holds scales of zero"),
        ("int8", scaled(SCALE, 1e-37), f"{SCALE} holds a scale of .*, which is nearly zero"),
        ("int8", scaled(SCALE, 1e12), f"{SCALE} holds a scale of"),
        ("int8", lambda t: t[SCALE][3].mul_(1e5), f"{SCALE} gives weights of .* times the usual"),
        ("int8", scaled(SCALE, 100), f"{Q}.weight has weights of"),
        ("int8", lambda t: t[SCALE].fill_(0.001), f"{SCALE} holds the same scales for every row"),
        ("int4", scaled(SCALE, -1), f"{SCALE} holds negative scales"),
        ("int4", lambda t: t[SCALE][3, 1].fill_(torch.inf), f"{SCALE} holds NaN or infinite"),
        ("nvfp4", scaled(SCALE, -1), f"{SCALE} holds negative scales"),
        ("nvfp4", scaled(f"{Q}.weight_global_scale", -1), "global_scale holds negative scales"),
        ("nvfp4", scaled(f"{Q}.weight_global_scale", 1e-9), f"{SCALE} gives weights of"),
        ("fp8", put("model.layers.0.self_attn.k_scale", -0.1), "k_scale holds negative scales"),
        ("fp8", put("model.layers.0.self_attn.v_scale", 0.0), "v_scale holds scales of zero"),
        ("fp8", lambda t: t.pop("model.layers.0.self_attn.v_scale"), "v_scale is missing"),
        ("int8", put("model.layers.0.self_attn.k_scale", 0.1), "k_scale belongs to no part"),
        ("int8", put(f"{Q}.weight_zero_point", 1, dtype=torch.int8), "zero_point has the shape"),
        ("int8", put(f"{Q}.weight_g_idx", 1, dtype=torch.int32), "g_idx belongs to no part"),
        ("int8", put("model.norm.input_scale", 1.0), "model.norm.input_scale belongs to no part"),
        ("int8", put("stray_zero_point", 1.0), "stray_zero_point belongs to no part"),
        ("int8", lambda t: t[f"{Q}.weight"].zero_(), f"{Q}.weight holds one value only"),
        ("int8", lambda t: t[f"{Q}.weight"][3].fill_(5), f"{Q}.weight holds one value throughout"),
        (
            "nvfp4",
            lambda t: t[f"{Q}.weight_packed"][3, :8].fill_(0x22),
            f"{Q}.weight_packed holds one value throughout a group in row 3",
        ),
        (
            "int8",
            lambda t: t.update({f"{Q}.weight": t[f"{Q}.weight"][:1].repeat(64, 1)}),
            f"{Q}.weight holds the same row throughout",
        ),
        ("int8", lambda t: t[f"{Q}.weight"].div_(4, rounding_mode="floor"), "of the range of its"),
        (
            "int8",
            lambda t: t[f"{Q}.weight"].clamp_(min=-127).abs_(),
            "do not lie around",
        ),
        ("fp8", lambda t: t[f"{Q}.weight"].view(torch.uint8)[0].fill_(127), "weight holds NaN"),
        ("int4", lambda t: t[f"{Q}.weight_packed"].zero_(), "weight_packed holds one value only"),
        ("int4", put(f"{Q}.weight_shape", 64, 65, dtype=torch.int64), "weight_shape is not 64 x"),
        ("int4", lambda t: t.pop(f"{Q}.weight_shape"), "weight_shape is missing"),
        ("int4_asymmetric", reshaped(f"{Q}.weight_zero_point", 2, 8), "zero_point has the shape"),
        ("int4_asymmetric", cast(f"{Q}.weight_zero_point", torch.int8), "zero_point is stored as"),
        (
            "int4_asymmetric",
            lambda t: t[f"{Q}.weight_zero_point"].zero_(),
            "weight_zero_point: the codes do not lie around their zero point",
        ),
        ("int8", cast(NORM, torch.float64), f"{NORM} is stored as F64"),
        ("int8", cast(NORM, torch.int64), f"{NORM} is stored as I64"),
        ("int8", reshaped(NORM, 64, 1), rf"{NORM} has the shape \(64, 1\)"),
        ("int8", lambda t: t[NORM].zero_(), f"{NORM} holds zeros only"),
        ("int8", scaled(NORM, -1), f"{NORM} holds negative values only"),
        ("int8", scaled(NORM, 1e9), f"{NORM} holds 9.98e"),
        ("int8", lambda t: t.update({NORM: t[NORM][:0].clone()}), f"{NORM} is empty"),
        ("int8", lambda t: t[EMBEDDING].fill_(0.5), f"{EMBEDDING} holds one value only"),
        ("int8", scaled(EMBEDDING, 1e-20), f"{EMBEDDING} holds .* at most, which is nearly zero"),
        (
            "int8",
            lambda t: t.update({EMBEDDING: t[EMBEDDING][:, :1].repeat(1, 64)}),
            f"{EMBEDDING} holds one value in each row",
        ),
        ("int8", lambda t: t[EMBEDDING][7].fill_(torch.nan), f"{EMBEDDING} holds NaN"),
        ("int8", lambda t: t.update({EMBEDDING: t[EMBEDDING][:-1].clone()}), "has the shape"),
        (
            "int8",
            lambda t: t.update({"lm_head.weight": t[EMBEDDING] * 2}),
            "lm_head.weight differs from model.embed_tokens.weight",
        ),
        (
            "int8",
            lambda t: t.update(
                {f"{DOWN}.weight": t["model.layers.0.mlp.down_proj.weight"].clone()}
            ),
            "holds the same values as",
        ),
        ("fp8_block", reshaped(SCALE, 4, 1), r"weight_scale has the shape \(4, 1\)"),
        ("int3", lambda t: t.pop(SCALE), f"{SCALE} is missing"),
    ],
)
def test_damage_to_tensors_is_named(
    micro: Callable[..., Path],
    tmp_path: Path,
    form: str,
    change: Callable[[Tensors], Any],
    fault: str,
) -> None:
    folder = Path(shutil.copytree(micro(form), tmp_path / "copy"))
    rewrite(folder, change)
    with pytest.raises(AssertionError, match=fault):
        assert verify(folder).faults == [], "\n".join(verify(folder).faults)


def with_one_large_weight(tensors: Tensors) -> None:
    """A row with a weight that is 2000 times the largest of the others, as trained models have
    after AWQ."""
    tensors[f"{Q}.weight"][3].zero_()
    tensors[f"{Q}.weight"][3, 5] = 127
    tensors[SCALE][3].mul_(2000)


def test_a_single_large_weight_is_sound(micro: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(micro("int8"), tmp_path / "copy"))
    rewrite(folder, with_one_large_weight)
    assert verify(folder).faults == []


@pytest.mark.parametrize("part", ["bias", "weight"])
def test_dense_tensors_of_another_family_are_checked(
    micro: Callable[..., Path], tmp_path: Path, part: str
) -> None:
    folder = Path(shutil.copytree(micro("original", "llama"), tmp_path / "copy"))
    rewrite(folder, reshaped(f"{Q}.{part}", *((8, 8) if part == "bias" else (32, 128))))
    assert any(f"{Q}.{part} has the shape" in fault for fault in verify(folder).faults)


def group(content: dict[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = content["quantization_config"]["config_groups"]["group_0"]
    return part


@pytest.mark.parametrize(
    ("form", "change", "fault"),
    [
        ("int8", lambda c: c.pop("rms_norm_eps"), "there is no rms_norm_eps"),
        ("int8", lambda c: c["rope_parameters"].update(rope_theta=0.5), "rope_theta is 0.5"),
        ("int4", lambda c: group(c)["weights"].update(group_size=33), "groups of 33 do not divide"),
        ("int8", lambda c: c.pop("hidden_act"), "there is no hidden_act"),
        ("int8", lambda c: c.pop("rope_parameters"), "there is no rope_theta"),
        ("int8", lambda c: group(c).update(targets=["Lineal"]), "'Lineal' matches no module"),
        ("int8", lambda c: group(c)["targets"].append("re:.*z_proj"), "matches no module"),
        (
            "int8",
            lambda c: group(c).update(format="pack-quantized"),
            "config's is int-quantized",
        ),
        ("int8", lambda c: group(c).update(input_activations=None), "does not fit int8"),
        ("int8", lambda c: group(c)["weights"].update(num_bits=4), "codes outside -8 to 7"),
        ("int8", lambda c: group(c)["weights"].update(strategy="tensor"), "has the shape"),
        ("int8", lambda c: group(c)["weights"].update(symmetric=False), "zero_point is missing"),
        ("int8", lambda c: group(c)["weights"].update(type="float"), "does not fit float8"),
        ("int8", lambda c: group(c)["input_activations"].update(num_bits=4), "no engine multipl"),
        ("int4", lambda c: group(c)["weights"].update(group_size=64), "has the shape"),
        ("int8", lambda c: c["quantization_config"].update(ignore=[]), "lm_head.weight"),
        ("int8", lambda c: c["quantization_config"]["ignore"].append(Q), "is stored as I8"),
        ("int8", lambda c: c.pop("quantization_config"), "is stored as I8"),
        ("fp8", lambda c: c["quantization_config"].pop("kv_cache_scheme"), "k_scale belongs to no"),
        (
            "int8",
            lambda c: c["quantization_config"].update(quantization_status="calibration"),
            "quantization_status is calibration",
        ),
        ("int8", lambda c: c.update(tie_word_embeddings=False), "lm_head.weight is missing"),
        ("int8", lambda c: c.update(model_type="llama"), "no class of model_type llama"),
        ("int8", lambda c: c.update(architectures=["LlamaForCausalLM"]), "no class of model_type"),
        ("int8", lambda c: c.update(architectures=[]), "architectures names no class"),
        ("int8", lambda c: c.update(vocab_size=95), "has the number 95, vocab_size is 95"),
        ("int8", lambda c: c.update(hiden_act=c.pop("hidden_act")), "Did you mean hidden_act"),
        ("int8", lambda c: c.update(num_hidden_layers=1, layer_types=None), "belongs to no part"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_named(
    micro: Callable[..., Path],
    tmp_path: Path,
    form: str,
    change: Callable[[dict[str, Any]], Any],
    fault: str,
) -> None:
    folder = Path(shutil.copytree(micro(form), tmp_path / "copy"))
    edit(folder / "config.json", change)
    with pytest.raises(AssertionError, match=fault):
        assert verify(folder).faults == [], "\n".join(verify(folder).faults)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(num_hidden_layers=3, layer_types=None), "num_hidden_layers is 3, the"),
        (lambda c: c.update(hidden_act="sillu"), "hidden_act|sillu"),
        (lambda c: c.update(model_type="qwen99"), "config.json"),
        (lambda c: c.update(layer_types=["full"]), "config.json"),
        (lambda c: c["quantization_config"].update(quant_method="gptq"), "quant_method is 'gptq'"),
        (lambda c: c["quantization_config"].update(config_groups={}), "config_groups is empty"),
        (lambda c: c["quantization_config"].update(ignore=["re:("]), "is no pattern"),
        (lambda c: group(c)["weights"].update(observer=3), "observer is 3"),
        (lambda c: group(c)["weights"].update(strategy="rows"), "strategy is 'rows'"),
        (lambda c: group(c)["weights"].update(actorder="group"), "has been removed"),
    ],
)
def test_a_config_that_cannot_be_built_is_bad_input(
    micro: Callable[..., Path], tmp_path: Path, change: Callable[[Any], Any], words: str
) -> None:
    folder = Path(shutil.copytree(micro("int8"), tmp_path / "copy"))
    edit(folder / "config.json", change)
    with pytest.raises(QuantlineError, match=words) as caught:
        verify(folder)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{}", "tokenizer.json: is no tokenizer"),
        ("tokenizer.json", '{"model": 1}', "tokenizer.json: is no tokenizer"),
        ("tokenizer_config.json", '{"chat_template": 1}', "chat_template is 1"),
        ("tokenizer_config.json", "[]", "holds a list"),
        ("generation_config.json", '{"temperature": "hot"}', "temperature is 'hot'"),
        ("generation_config.json", '{"eos_token_id": {}}', "eos_token_id is {}"),
        ("chat_template.jinja", "", "chat_template.jinja: is empty"),
        ("special_tokens_map.json", "{", "no JSON"),
    ],
)
def test_small_files_are_read_too(
    micro: Callable[..., Path], tmp_path: Path, name: str, content: str, words: str
) -> None:
    folder = Path(shutil.copytree(micro("int8"), tmp_path / "copy"))
    (folder / name).write_text(content)
    with pytest.raises(QuantlineError, match=words) as caught:
        verify(folder)
    assert caught.value.exit_code == 2


def test_autorounds_signed_scales_are_sound_and_a_single_negative_layer_is_not(
    micro: Callable[..., Path], tmp_path: Path
) -> None:
    def turn(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("weight_scale")]:
            tensors[name][::2] *= -1

    folder = Path(shutil.copytree(micro("int4"), tmp_path / "copy"))
    rewrite(folder, turn)
    assert verify(folder).faults == []
    rewrite(folder, lambda t: t.update({SCALE: t[SCALE].abs()}))
    assert any("holds negative scales" in fault for fault in verify(folder).faults)


@pytest.mark.parametrize(
    ("size", "constant", "faults"), [(16, 2, 0), (16, 3, 1), (32, 2, 0), (64, 1, 1), (128, 1, 1)]
)
def test_a_few_small_groups_may_hold_one_value(size: int, constant: int, faults: int) -> None:
    """As in trained weights; here of 10,000 groups."""
    weights = QuantArgs(type="float", bits=4, strategy="group", group_size=size)
    layer: Any = SimpleNamespace(weights=weights, stored="q_proj.weight_packed")
    least, most = torch.full((2, 5000), -6.0), torch.full((2, 5000), 6.0)
    least[1, :constant] = most[1, :constant] = 3.0
    groups = Groups(least, most, most, most, is_constant=False, rows_are_equal=False)
    expected = ["q_proj.weight_packed holds one value throughout a group in row 1"]
    assert _constant_faults(layer, groups, torch.zeros(1)) == expected[:faults]


def test_a_whole_row_never_holds_one_value() -> None:
    """Not in a layer of so many rows that its groups are few among all."""
    weights = QuantArgs(type="float", bits=4, strategy="group", group_size=16)
    layer: Any = SimpleNamespace(weights=weights, stored="q_proj.weight_packed")
    least, most = torch.full((20_000, 2), -6.0), torch.full((20_000, 2), 6.0)
    least[7] = most[7] = 3.0
    groups = Groups(least, most, most, most, is_constant=False, rows_are_equal=False)
    expected = ["q_proj.weight_packed holds one value throughout a group in row 7"]
    assert _constant_faults(layer, groups, torch.zeros(1)) == expected
