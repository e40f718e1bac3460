"""`python -m evaluate.traffic traffic=NAME`: writes the lengths of traffic, without its texts.

The lines have the plain format, so that `traffic.path=FILE` reads them on a machine that has
neither the data nor a network, and lengths can be shared where texts cannot. Beginnings that
several prompts share stay shared.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

from conf.app import run
from conf.errors import bad_input
from conf.schema.commands import EvaluateConfig
from conf.schema.load import ScenarioConfig
from conf.terminal import say
from conf.unused.parts import traffic_rules
from evaluate.command import COMMAND as EVALUATE
from evaluate.measure.targets import targets
from evaluate.measure.traffic.resolved import ResolvedConversation, read_resolved
from evaluate.measure.traffic.resolving import read_traffic, with_traffic
from evaluate.measure.traffic.shared_prefixes import shared_blocks
from evaluate.results.summary import percentile

COMMAND = replace(
    EVALUATE,
    module="evaluate.traffic",
    unused=traffic_rules(),
    purpose="Prints the lengths of a traffic's requests as JSON lines, which traffic.path=FILE "
    "reads on\nanother machine. Texts are counted with the model's tokenizer, and left out.",
    examples=(
        "python -m evaluate.traffic traffic=sharegpt traffic.requests=1000 > lengths.jsonl",
        "python -m evaluate.traffic model=tiny traffic.path=requests.jsonl > lengths.jsonl",
        "python -m evaluate.traffic model=qwen3-8b weights=random traffic=synthetic",
    ),
)
NAME = "traffic"
SHARES = (0.1, 0.5, 0.9, 0.99)
COUNTED = {
    "given": "with their given lengths",
    "tokenizer": "counted by the tokenizer",
    "characters": "estimated by their characters",
}


def show_traffic(config: EvaluateConfig) -> None:
    """Prints the requests, and their percentiles on the standard error."""
    if config.traffic.turns > 1:
        raise bad_input(f"traffic.turns={config.traffic.turns}: only single turns can be written")
    conversations = read_traffic(config.traffic)
    config = replace(config, scenario={NAME: ScenarioConfig(from_traffic=True)})
    folder = next(target.folder for target in targets(config) if target.folder is not None)
    traffic = with_traffic(config, conversations, Path(folder)).scenario[NAME].traffic
    assert traffic is not None
    requests = read_resolved(traffic.sha256)
    lengths = [_line(conversation) for conversation in requests]
    shared = shared_blocks([conversation.passages for conversation in requests])
    for line, blocks in zip(lengths, shared, strict=True):
        parts = {"shared": [asdict(block) for block in blocks]} if blocks else {}
        print(json.dumps(line | parts))
    for name in ("input_tokens", "output_tokens"):
        values = [line[name] for line in lengths]
        texts = [f"p{share * 100:g} {percentile(values, share):,.0f}" for share in SHARES]
        say(f"{name}: {', '.join(texts)}")
    tokens = sum(block.tokens for blocks in shared for block in blocks)
    say(f"shared: {tokens / sum(line['input_tokens'] for line in lengths):.1%} of the input tokens")
    if traffic.drawn_answers:
        say(f"output_tokens: {traffic.drawn_answers:,} are drawn, the traffic does not give them")
    counted = COUNTED.get(traffic.tokens, f"counted by {traffic.tokens}")
    say(f"{len(lengths)} requests, {counted}; {traffic.left_out} were too long")


def _line(conversation: ResolvedConversation) -> dict[str, float]:
    (turn,) = conversation.turns
    line: dict[str, float] = {}
    if conversation.arrival_s is not None:
        line["timestamp"] = conversation.arrival_s
    return line | {
        "input_tokens": conversation.input_tokens(turn),
        "output_tokens": turn.output_tokens,
    }


if __name__ == "__main__":
    run(COMMAND, show_traffic)
