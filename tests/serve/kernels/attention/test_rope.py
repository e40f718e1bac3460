"""vLLM's classes rotate by our op, where they are known and their modules fit."""

import ast
import inspect
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from serve.kernels.attention import rope, rotate_op
from serve.kernels.attention.conditions import can_normalize, can_rotate
from serve.kernels.attention.impl import QuantlineAttentionImpl
from serve.kernels.attention.rope import CLASSES, ROTATES, forward_hash, hook
from serve.kernels.hooks import installed
from serve.kernels.settings import Settings
from tests.conftest import ROOT
from tests.serve.kernels.remote_wheel import unpack_part, wheel_address

WIDTH = 64
SOURCE = '''
def forward(self, positions: int, hidden_states: int) -> int:
    """Documentation."""
    # a comment
    return hidden_states + 1
'''


def forwards(folder: Path) -> dict[str, str]:
    """The hash of each class's forward in the sources of a vLLM."""
    found = {}
    for module, (name, _) in CLASSES.items():
        path = folder.parent / f"{module.replace('.', '/')}.py"
        source = path.read_text(encoding="utf-8")
        (defined,) = [
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.ClassDef) and node.name == name
        ]
        (forward,) = [
            node
            for node in defined.body
            if isinstance(node, ast.FunctionDef) and node.name == "forward"
        ]
        segment = ast.get_source_segment(source, forward, padded=True)
        assert segment is not None
        found[name] = forward_hash(segment)
    return found


KNOWN = dict(CLASSES.values())


def test_the_classes_of_the_installed_vllm_are_known() -> None:
    assert forwards(installed()) == KNOWN


@pytest.mark.network
def test_the_classes_of_the_oldest_vllm_are_known(tmp_path: Path) -> None:
    oldest = (ROOT / "pyproject.toml").read_text().split('"vllm>=')[1].split(",")[0]
    modules = {f"{module.replace('.', '/')}.py" for module in CLASSES}
    try:
        unpack_part(wheel_address("vllm", oldest), modules, tmp_path)
    except OSError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    assert forwards(tmp_path / "vllm") == KNOWN


def test_a_hash_is_of_what_a_method_does() -> None:
    same = SOURCE.replace("Documentation", "Other words").replace("# a comment", "# no")
    assert forward_hash(SOURCE) == forward_hash(same)
    assert forward_hash(SOURCE) != forward_hash(SOURCE.replace("+ 1", "+ 2"))
    assert forward_hash(SOURCE) != forward_hash(SOURCE.replace("positions", "position"))


@pytest.fixture(autouse=True)
def _vllm_config() -> Any:
    with set_current_vllm_config(VllmConfig()):
        yield


def rotary(**changes: Any) -> RotaryEmbedding:
    given: dict[str, Any] = {
        "head_size": WIDTH, "rotary_dim": WIDTH, "is_neox_style": True, "base": 10000.0,
        "max_position_embeddings": 2048, "dtype": torch.bfloat16,
    }  # fmt: skip
    return RotaryEmbedding(**(given | changes))


def test_rotations_of_whole_heads_in_halves_fit() -> None:
    class Other(RotaryEmbedding):
        pass

    assert can_rotate(rotary(), WIDTH)
    assert not can_rotate(rotary(rotary_dim=32), WIDTH)
    assert not can_rotate(rotary(is_neox_style=False), WIDTH)
    assert not can_rotate(rotary(), 128)
    assert not can_rotate(rotary(head_size=96, rotary_dim=96), 96), "no power of two"
    assert not can_rotate(rotary(max_position_embeddings=1024), WIDTH), "too few for the proof"
    assert not can_rotate(torch.nn.Identity(), WIDTH)
    other = rotary()
    other.__class__ = Other
    assert not can_rotate(other, WIDTH)


def test_norms_of_heads_fit() -> None:
    assert can_normalize(RMSNorm(WIDTH), WIDTH)
    assert not can_normalize(RMSNorm(WIDTH, var_hidden_size=32), WIDTH)
    assert not can_normalize(RMSNorm(32), WIDTH)
    assert not can_normalize(torch.nn.LayerNorm(WIDTH), WIDTH)


class Attention(torch.nn.Module):
    """As vLLM's classes are: it projects, normalizes, rotates, attends and projects."""

    def __init__(self, is_ours: bool = True, norms: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = 4, 2, WIDTH
        self.q_size, self.kv_size = 4 * WIDTH, 2 * WIDTH
        self.rotary_emb = rotary()
        made = object.__new__(QuantlineAttentionImpl) if is_ours else object()
        self.attn = SimpleAttention(made)
        if norms:
            self.q_norm, self.k_norm = RMSNorm(WIDTH, eps=1e-6), RMSNorm(WIDTH, eps=eps)

    def qkv_proj(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x.repeat(1, 8), None

    def o_proj(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x + 1, None

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states * 0


class SimpleAttention(torch.nn.Module):
    def __init__(self, impl: Any) -> None:
        super().__init__()
        self.impl = impl

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert q.shape[1] == 4 * WIDTH
        assert k.shape == v.shape
        return q


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> type[Attention]:
    """A class of a module that vLLM might have."""
    module = ModuleType("made_up")
    made = type("Attention", (Attention,), {"forward": Attention.forward})
    module.Attention = made  # type: ignore[attr-defined]
    digest = forward_hash(inspect.getsource(Attention.forward))
    monkeypatch.setitem(CLASSES, "made_up", ("Attention", digest))
    monkeypatch.setattr(rope, "add_to_graph_key", lambda fact: None)
    monkeypatch.setattr(rope, "current_settings", lambda: Settings(("attention",)))
    hook(module)
    hook(module)  # a second time changes nothing
    return made


def test_a_layer_rotates_by_our_op(
    hooked: type[Attention], monkeypatch: pytest.MonkeyPatch
) -> None:
    rotated = []

    def rotate(shape: Any, qkv: torch.Tensor, positions: torch.Tensor, given: Any) -> None:
        rotated.append((shape, given))
        qkv += 2

    monkeypatch.setattr(rotate_op, "rotate", rotate)
    layer = hooked()
    assert layer.attn.impl.modules.q_norm is layer.q_norm
    x = torch.ones(3, WIDTH, dtype=torch.bfloat16)
    assert (layer(torch.arange(3), x) == 4).all(), "1 + 2 + 1"
    ((shape, given),) = rotated
    assert (shape.heads, shape.key_heads, shape.width) == (4, 2, WIDTH)
    assert given.epsilon == 1e-6
    assert given.k_weight is not None


def test_a_layer_without_norms_rotates_only(
    hooked: type[Attention], monkeypatch: pytest.MonkeyPatch
) -> None:
    ropes = []
    monkeypatch.setattr(rotate_op, "rotate", lambda *given: ropes.append(given[-1]))
    hooked(norms=False)(torch.arange(3), torch.ones(3, WIDTH, dtype=torch.bfloat16))
    assert [one.q_weight for one in ropes] == [None]


@pytest.mark.parametrize("changes", [{"is_ours": False}, {"eps": 1e-5}])
def test_other_layers_run_as_vllm_runs_them(
    hooked: type[Attention], changes: dict[str, Any]
) -> None:
    layer = hooked(**changes)
    assert not getattr(layer, ROTATES)
    assert (layer(torch.arange(1), torch.ones(1, WIDTH)) == 0).all()


def test_a_subclass_runs_as_vllm_runs_it(hooked: type[Attention]) -> None:
    class Sub(hooked):  # type: ignore[valid-type, misc]
        pass

    assert not getattr(Sub(), ROTATES)


def test_an_engine_that_asks_for_no_attention_of_ours_is_left_alone(
    hooked: type[Attention], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rope, "current_settings", lambda: Settings(("one_token",)))
    monkeypatch.setattr(rope, "_take_over", lambda layer: 1 / 0)
    assert not getattr(hooked(), ROTATES)


def test_a_layer_whose_modules_fail_runs_as_vllm_runs_it(
    hooked: type[Attention], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rope, "can_rotate", lambda *_: 1 / 0)
    assert not getattr(hooked(), ROTATES)
    assert "a layer rotates as vLLM does" in caplog.text


def test_a_class_that_is_not_known_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = SimpleNamespace(__name__="made_up", Attention=Attention)
    monkeypatch.setitem(CLASSES, "made_up", ("Attention", "another"))
    before = Attention.forward
    with caplog.at_level("INFO", "vllm.quantline"):
        hook(module)  # type: ignore[arg-type]
        monkeypatch.setitem(CLASSES, "made_up", ("Missing", "another"))
        hook(module)  # type: ignore[arg-type]
    assert Attention.forward is before
    assert "its forward is new" in caplog.text
    assert "Missing rotates as vLLM does" in caplog.text
