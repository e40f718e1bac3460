"""The entry point in vLLM's processes."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import quantline
from serve.kernels import imports, plugin, settings
from serve.kernels.plugin import complete, register
from serve.kernels.settings import VERSION, Settings

ENGINE_ARGS = """
from types import SimpleNamespace

class EngineArgs:
    def __init__(self, additional_config=None):
        self.additional_config = additional_config or {}

    def create_engine_config(self, usage_context=None, headless=False):
        return SimpleNamespace(additional_config=self.additional_config, headless=headless)
"""


@pytest.fixture
def on_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules in place of vLLM's; returns their folder."""
    monkeypatch.setattr(plugin, "_is_cuda", lambda: True)
    monkeypatch.setattr(plugin, "ENGINE_ARGS", "engine_args_for_tests")
    monkeypatch.setattr(plugin, "WORKER", "worker_for_tests")
    monkeypatch.setattr(plugin, "FORMATS", "formats_for_tests")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "engine_args_for_tests.py").write_text(ENGINE_ARGS)
    (tmp_path / "worker_for_tests.py").write_text("loaded = True\n")
    (tmp_path / "formats_for_tests.py").write_text("")
    for name in ("engine_args_for_tests", "worker_for_tests", "formats_for_tests"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return tmp_path


def config_of(additional_config: dict[str, Any] | None = None) -> Any:
    module = importlib.import_module("engine_args_for_tests")
    return module.EngineArgs(additional_config).create_engine_config(headless=True)


@pytest.mark.parametrize("is_imported_first", [True, False])
def test_a_config_gets_our_entry_beside_the_users(on_cuda: Path, is_imported_first: bool) -> None:
    if is_imported_first:
        importlib.import_module("engine_args_for_tests")
    for _ in range(3):
        register()
    theirs = {"theirs": 1, "quantline": {"kernels": "auto"}}
    config = config_of(theirs)
    assert config.headless
    assert config.additional_config == {"theirs": 1, "quantline": Settings().entry}
    assert theirs == {"theirs": 1, "quantline": {"kernels": "auto"}}
    assert config.additional_config["quantline"]["version"] == VERSION
    wrapped = importlib.import_module("engine_args_for_tests").EngineArgs.create_engine_config
    assert not hasattr(wrapped.__wrapped__, "__wrapped__"), "wrapped once"


def test_vllms_own_kernels_leave_no_trace_in_the_config(on_cuda: Path) -> None:
    register()
    assert config_of({"quantline": {"kernels": "vllm"}}).additional_config == {}


def test_a_family_of_the_user(on_cuda: Path) -> None:
    register()
    entry = config_of({"quantline": {"kernels": "sparse"}}).additional_config["quantline"]
    assert entry["kernels"] == ["sparse"]


def test_a_wrong_entry_is_logged_and_switches_ours_off(
    on_cuda: Path, caplog: pytest.LogCaptureFixture
) -> None:
    register()
    assert config_of({"quantline": {"kernels": "sparce"}}).additional_config == {}
    assert "Did you mean sparse?" in caplog.text


def test_a_config_of_another_kind_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    theirs = object()
    config = SimpleNamespace(additional_config=theirs)
    complete(config)
    assert config.additional_config is theirs
    assert "vLLM's own kernels are used" in caplog.text


def test_kernels_are_inserted_when_a_worker_is_imported(
    on_cuda: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inserted: list[str] = []
    hooked: list[str] = []

    def find(name: str) -> Any:
        if "fp8" in name:
            raise ImportError("no such module")
        names = inserted if "linear" in name else hooked
        return SimpleNamespace(register=lambda: names.append(name))

    monkeypatch.setattr(plugin, "importlib", SimpleNamespace(import_module=find))
    register()
    register()
    assert inserted == []
    assert set(hooked) == {"serve.kernels.attention.hook"}
    assert importlib.import_module("worker_for_tests").loaded
    assert inserted == [f"serve.kernels.linear.{name}" for name in ("int8", "weight_only")]
    assert "vLLM's own kernels are used for fp8: no such module" in caplog.text
    register()
    assert len(inserted) == 4, "each module sees to it that nothing is listed twice"


def test_a_module_that_cannot_be_imported_fails_as_without_us(on_cuda: Path) -> None:
    (on_cuda / "worker_for_tests.py").write_text("raise ImportError('theirs')\n")
    register()
    with pytest.raises(ImportError, match="theirs"):
        importlib.import_module("worker_for_tests")
    (on_cuda / "worker_for_tests.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("worker_for_tests")


def test_without_cuda_the_format_is_added_and_amx_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules: list[str] = []
    monkeypatch.setattr(plugin, "_is_cuda", lambda: False)
    monkeypatch.setattr(plugin, "after_import", lambda name, _: modules.append(name))
    register()
    assert modules == [plugin.FORMATS, plugin.CPU_WORKER]


def test_a_format_that_cannot_be_added_is_logged(
    on_cuda: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str) -> Any:
        raise ImportError(f"no {name}")

    register()
    monkeypatch.setattr(plugin, "importlib", SimpleNamespace(import_module=fail))
    importlib.import_module("formats_for_tests")
    assert "VPTQ was not registered" in caplog.text
    assert "no serve.kernels.vptq.config" in caplog.text


def test_it_never_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> bool:
        raise RuntimeError("no platform")

    monkeypatch.setattr(plugin, "_is_cuda", fail)
    register()
    assert "no platform" in caplog.text


def test_the_module_keeps_its_own_loader(on_cuda: Path) -> None:
    seen: list[str] = []
    imports.after_import("worker_for_tests", lambda module: seen.append(module.__name__))
    module = importlib.import_module("worker_for_tests")
    assert seen == ["worker_for_tests"]
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert importlib.reload(module).loaded
    assert seen == ["worker_for_tests"]


def test_the_entry_point_leaves_the_path_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(plugin, "register", lambda: calls.append(1))
    path = list(sys.path)
    quantline.register_kernels()
    assert calls == [1]
    assert sys.path == path


def test_a_users_module_with_our_name_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "conf.py").write_text("theirs = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "conf")
    monkeypatch.setattr(plugin, "register", lambda: pytest.fail("it was registered"))
    quantline.register_kernels()
    assert "another module is called conf" in caplog.text
    assert "conf" not in sys.modules


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}


@pytest.mark.slow
def test_graphs_of_vllm_never_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of compiled graphs, from vLLM's own code."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))

    def config(**entry: Any) -> Any:
        additional = {"additional_config": {"quantline": entry}} if entry else {}
        arguments = EngineArgs(str(tmp_path), skip_tokenizer_init=True, **additional)
        return arguments.create_engine_config()

    without_us = config().compute_hash()
    monkeypatch.setattr(plugin, "_is_cuda", lambda: True)
    monkeypatch.setattr(EngineArgs, "create_engine_config", EngineArgs.create_engine_config)
    register()
    register()
    every = config(kernels="auto")
    assert config(kernels="vllm").compute_hash() == without_us
    assert config().compute_hash() == every.compute_hash()
    hashes = [every.compute_hash(), config(kernels="sparse").compute_hash()]
    hashes.append(config(kernels="auto", second_layout=False).compute_hash())
    with set_current_vllm_config(every):
        assert settings.current_settings() == Settings()
        settings.add_to_graph_key("a layer")
        assert settings.current_settings() == Settings()
    hashes += [every.compute_hash(), without_us]
    assert len(set(hashes)) == 5
    assert config(kernels="auto").compute_hash() == hashes[0]
    with set_current_vllm_config(config(kernels="vllm")):
        assert settings.current_settings().families == ()


@pytest.mark.slow
def test_the_names_that_we_rely_on_are_vllms() -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    assert callable(EngineArgs.create_engine_config)
    for name in ("_POSSIBLE_INT8_KERNELS", "_POSSIBLE_FP8_KERNELS", "_POSSIBLE_KERNELS"):
        assert getattr(linear, name)[PlatformEnum.CUDA]
    assert importlib.util.find_spec("vllm.v1.worker.gpu_worker") is not None

    class Ours:
        pass

    lists: dict[Any, list[type[Any]]] = {PlatformEnum.CUDA: [int]}
    plugin.insert_first(lists, Ours)
    plugin.insert_first(lists, Ours)
    assert lists == {PlatformEnum.CUDA: [Ours, int]}
