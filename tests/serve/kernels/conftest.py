"""Log lines of the plugin, whatever other tests did to Python's logging."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pytest see our lines: vLLM's loggers do not hand them on, and Hydra, where it configures
    logging, disables loggers that exist."""
    monkeypatch.setattr(logging.root.manager, "disable", 0)
    for name in ("vllm", "vllm.quantline"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "propagate", True)
        monkeypatch.setattr(logger, "disabled", False)
