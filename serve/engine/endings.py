"""Why the engine behind a server of vLLM ended."""

import re

from conf.process.endings import ERROR, last_lines, oom_kills, reason_in

# What vLLM's server says when the process of its engine is gone, and how that begins its lines.
ENGINE_DIED = re.compile(r"engine core exited unexpectedly|proc\w* [^\n]*died|EngineDeadError")
ENGINE_LINE = ("(EngineCore", "(Worker")


def engine_ending(log: str, kills_before: int) -> str:
    """How the process of an engine ended whose server says only that it is gone: with the error
    that it wrote; killed where it wrote none."""
    own = "\n".join(line for line in log.splitlines() if line.startswith(ENGINE_LINE))
    if ERROR.search(own):
        return f"the engine failed: {reason_in(own)}"
    hint = ": the system was out of memory" if oom_kills() > kills_before else ""
    return f"the engine's process was killed or crashed{hint}; {last_lines(own)}"
