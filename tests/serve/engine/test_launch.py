"""The environment in which vLLM is started."""

import pytest

from serve.engine import launch


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
