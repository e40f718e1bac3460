"""Why an engine is gone whose server lives on to tell."""

import pytest

from serve.engine import endings
from serve.engine.endings import engine_ending

SERVER_LOG = """\
(APIServer pid=7) WARNING 11-16 04:23:05 [utils.py:255] errors like `OSError: [Errno 24] Too many`
(EngineCore pid=8) INFO 11-16 04:27:40 [core.py:7] decoding
(APIServer pid=7) WARNING 11-16 04:27:47 [core_client.py:817] engine core exited unexpectedly
(APIServer pid=7) ERROR 11-16 04:27:47 [async_llm.py:906] EngineDeadError: See root cause above
"""
FATAL = "(EngineCore pid=8) ERROR 11-16 04:27:41 [core.py:9] ValueError: no room for this"


def test_an_engine_that_was_killed_is_told_from_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endings, "oom_kills", lambda: 1)
    assert endings.ENGINE_DIED.search(SERVER_LOG)
    assert "killed or crashed; its log ends with: (EngineCore pid=8)" in engine_ending(
        SERVER_LOG, 1
    )
    assert "killed or crashed: the system was out of memory;" in engine_ending(SERVER_LOG, 0)
    assert engine_ending(f"{FATAL}\n{SERVER_LOG}", 0) == f"the engine failed: {FATAL}"
