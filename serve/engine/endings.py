"""Why the engine behind a server of vLLM ended."""

import re

from conf.process.endings import ERROR, last_lines, oom_kills, reason_in

# What vLLM's server logs when its engine process is gone, and how the engine's own lines begin.
ENGINE_DIED = re.compile(r"engine core exited unexpectedly|proc\w* [^\n]*died|EngineDeadError")
ENGINE_LINE = ("(EngineCore", "(Worker")


def engine_ending(log: str, kills_before: int) -> str:
    """How an engine process ended whose server only logs that it is gone: with the error in its
    own log lines; killed where there is none."""
    engine_log = "\n".join(line for line in log.splitlines() if line.startswith(ENGINE_LINE))
    if ERROR.search(engine_log):
        return f"the engine failed: {reason_in(engine_log)}"
    hint = ": the system was out of memory" if oom_kills() > kills_before else ""
    return f"the engine's process was killed or crashed{hint}; {last_lines(engine_log)}"
