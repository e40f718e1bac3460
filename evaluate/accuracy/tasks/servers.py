"""Plans the servers: which run at the same time, and the engine options of each."""

from dataclasses import dataclass, replace

from conf.models import read_config, required_int
from conf.schema.commands import EvaluateConfig
from conf.schema.load import EngineConfig, EngineOptions
from evaluate.accuracy.tasks.events import AT_ONCE
from evaluate.accuracy.tasks.plan import Missing
from evaluate.measure.engine_memory import EngineMemory
from evaluate.measure.side_by_side import AT_ONCE as MOST_REQUESTS
from evaluate.measure.side_by_side import engine_options, fitting_groups, tokens_of_requests

# vLLM computes the log-probabilities of all tokens of a prompt in one step, which its own estimate
# of the memory leaves out: bytes for each token and each entry of the vocabulary.
LOGPROB_BYTES = 8
MOST_IN_A_STEP = 8192  # tokens; vLLM's default on a large GPU


@dataclass(frozen=True)
class WorkerPlan:
    """What one worker asks: its checkpoints, one after the other."""

    missing: list[Missing]
    engine: EngineConfig
    checkpoint: str = ""
    """Its only checkpoint; empty for the one worker of all checkpoints."""
    neighbours: int = 0
    """Servers that run at the same time."""

    def without(self, tasks: set[str]) -> "WorkerPlan":
        """The plan without some tasks."""
        left = [
            Missing(entry.checkpoint, [name for name in entry.tasks if name not in tasks])
            for entry in self.missing
        ]
        return replace(self, missing=[entry for entry in left if entry.tasks])


@dataclass(frozen=True)
class _SizedServer:
    """A server that may run beside others."""

    missing: Missing
    options: EngineOptions
    held_gib: float


def worker_groups(
    config: EvaluateConfig, recorded: EngineOptions, missing: list[Missing]
) -> list[list[WorkerPlan]]:
    """The workers, grouped into those that run at the same time. The original is in the first
    group. `recorded`: the engine's options with this machine's defaults."""
    one_after_another = [[WorkerPlan(missing, config.engine)]]
    if config.side_by_side == 1 or config.engine.kind == "transformers" or len(missing) == 1:
        return one_after_another
    memory = EngineMemory(config.engine, recorded)
    servers = [_sized(entry, config.engine.options, memory) for entry in missing]
    server_groups = fitting_groups([servers], config.side_by_side, lambda server: server.held_gib)
    if all(len(group) == 1 for group in server_groups):
        return one_after_another
    return [_worker_plans(config.engine, group) for group in server_groups]


def _worker_plans(engine: EngineConfig, servers: list[_SizedServer]) -> list[WorkerPlan]:
    """The workers of a group. A server without neighbours keeps the options that it would have
    had: vLLM sizes its KV cache."""
    neighbours = len(servers) - 1
    return [
        WorkerPlan(
            missing=[server.missing],
            engine=replace(engine, options=server.options) if neighbours else engine,
            checkpoint=server.missing.checkpoint.name,
            neighbours=neighbours,
        )
        for server in servers
    ]


def _sized(missing: Missing, options: EngineOptions, memory: EngineMemory) -> _SizedServer:
    """The server with a KV cache for all requests that the harness sends at once."""
    checkpoint = missing.checkpoint
    config = read_config(checkpoint.folder)
    requests = min(AT_ONCE, int(options.get(MOST_REQUESTS, AT_ONCE)))
    tokens = tokens_of_requests(requests, checkpoint.context)
    own_options = engine_options(options, memory.cache_bytes(config, tokens))
    held_gib = memory.held_by(checkpoint.folder, own_options)
    in_a_step = min(checkpoint.context, MOST_IN_A_STEP)
    logprob_bytes = in_a_step * required_int(config, "vocab_size") * LOGPROB_BYTES
    return _SizedServer(missing, own_options, held_gib + logprob_bytes / 2**30)
