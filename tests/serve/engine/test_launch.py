"""The environment in which vLLM is started, and what of its options has no effect there."""

import pytest

from serve.engine import launch
from tests.conftest import evaluate_config


@pytest.mark.parametrize(
    ("binding", "variable"),
    [("nobind", "0"), ("auto", None)],
)
def test_a_server_on_a_cpu_binds_threads_in_a_process_of_their_own(
    monkeypatch: pytest.MonkeyPatch, binding: str, variable: str | None
) -> None:
    monkeypatch.setattr(launch, "on_cpu", lambda: True)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", binding)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    assert launch.environment()["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert launch.server_environment({}).get("VLLM_ENABLE_V1_MULTIPROCESSING") == variable


@pytest.mark.parametrize(
    ("options", "on_cpu", "is_said"),
    [
        (["engine.kernels=[sparse,one_token]"], True, True),
        (["engine.kernels=[sparse]"], False, False),
        (["engine.kernels=auto"], True, False),
        (["engine.kernels=vllm"], True, False),
        ([], True, False),
    ],
)
def test_kernels_that_need_a_gpu_are_named_without_one(
    options: list[str],
    on_cpu: bool,
    is_said: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(launch, "on_cpu", lambda: on_cpu)
    launch.say_unused_kernels(evaluate_config("model=tiny", *options).engine)
    said = capsys.readouterr().err
    assert said.startswith(f"{options[0]} has no effect: ") if is_said else not said
