"""Measures a server with both tools in turns, and compares their figures."""

import json
import statistics
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from conf.cache import log_file
from conf.errors import environment_failure, gate_failed
from conf.process.running import start
from conf.schema.load import ScenarioConfig
from conf.schema.traffic_check import TrafficCheckConfig
from conf.terminal import say
from evaluate.measure.engines.http_client import Server, send_load
from evaluate.measure.workload import load_of
from evaluate.traffic_check.figures import NAMES, Figures, figures_of
from evaluate.traffic_check.paced_server import RECORD
from evaluate.traffic_check.programs import PACED_SERVER, Listening, Pace
from evaluate.traffic_check.vllm_bench import WORDS, bench, write_tokenizer
from serve.engine.client import key_headers, no_proxy, served_name

OURS, THEIRS = "ours", "vllm bench serve"


@dataclass
class Comparison:
    """The runs of both tools with one number of clients."""

    clients: int
    runs: dict[str, list[Figures]] = field(default_factory=lambda: {OURS: [], THEIRS: []})
    written: dict[str, list[Figures]] = field(default_factory=lambda: {OURS: [], THEIRS: []})
    """What the stand-in wrote in each run; empty for another server. Without throughput."""

    def median(self, tool: str, name: str) -> float:
        return statistics.median(run.of(name) for run in self.runs[tool])

    def ratio(self, name: str) -> float:
        """Ours over theirs, the median over the pairs."""
        pairs = zip(self.runs[OURS], self.runs[THEIRS], strict=True)
        return statistics.median(a.of(name) / b.of(name) for a, b in pairs)

    def to_written(self, tool: str, name: str) -> float | None:
        """A tool's figure over what the stand-in wrote; None for a throughput, and for another
        server."""
        if not self.written[tool] or name == "tokens_per_s":
            return None
        pairs = zip(self.runs[tool], self.written[tool], strict=True)
        return statistics.median(a.of(name) / b.of(name) for a, b in pairs)


def check_traffic(config: TrafficCheckConfig) -> None:
    """Prints a table; raises where a figure differs by too much."""
    with TemporaryDirectory() as scratch, _server(config) as url:
        tokenizer = config.tokenizer or scratch
        if config.tokenizer is None:
            write_tokenizer(Path(scratch))
        model = served_name(url)
        comparisons = [
            _compare(config, url, model, tokenizer, clients, Path(scratch))
            for clients in config.clients
        ]
    for line in table(comparisons):
        print(line)
    worst, where = max(
        (abs(comparison.ratio(name) - 1), f"{title} of {comparison.clients} clients")
        for comparison in comparisons
        for name, title in NAMES.items()
    )
    if worst > config.max_difference:
        raise gate_failed(
            f"{where}: differs by {worst:.1%} from vllm bench serve, more than "
            f"{config.max_difference:.1%}"
        )


@contextmanager
def _server(config: TrafficCheckConfig) -> Iterator[str]:
    """The URL of the server to measure."""
    if config.url is not None:
        yield config.url.rstrip("/")
        return
    pace = Pace(config.ttft_ms, config.tpot_ms, config.in_steps)
    with closing(start(PACED_SERVER, pace, log_file("traffic-check"))) as running:
        running.begin()
        listening = next(event for event in running.events() if isinstance(event, Listening))
        yield listening.url


def _compare(
    config: TrafficCheckConfig, url: str, model: str, tokenizer: str, clients: int, folder: Path
) -> Comparison:
    """Both tools by turns, each first in every second pair."""
    comparison = Comparison(clients)

    def ours(repeat: int) -> Figures:
        return _send(config, url, model, clients, repeat)

    def theirs(_: int) -> Figures:
        return bench(config, url, model, tokenizer, clients, folder)

    tools: list[tuple[str, Callable[[int], Figures]]] = [(OURS, ours), (THEIRS, theirs)]
    ours(-1)  # a warm-up
    if config.url is None:
        _written(url)
    for repeat in range(config.repeats):
        for name, run in tools if repeat % 2 == 0 else reversed(tools):
            figures = run(repeat)
            comparison.runs[name].append(figures)
            if config.url is None:
                later = clients * (config.rounds - 1)
                comparison.written[name].append(_written(url, later))
            say(
                f"{clients} clients, {name}: TTFT {figures.ttft_ms:.1f} ms, "
                f"TPOT {figures.tpot_ms:.2f} ms, {figures.tokens_per_s:.0f} tokens/s"
            )
    return comparison


def _send(config: TrafficCheckConfig, url: str, model: str, clients: int, repeat: int) -> Figures:
    scenario = ScenarioConfig(
        concurrency=clients,
        requests=clients * (config.rounds if repeat >= 0 else 2),
        input_tokens=config.input_tokens,
        output_tokens=config.output_tokens,
        ttft_ms=config.ttft_ms,
        tpot_ms=config.tpot_ms,
    )
    load = load_of(scenario, "traffic_check", repeat, WORDS)
    requests = send_load(Server(url, model, key_headers()), load)
    errors = [request.error for request in requests if not request.is_answered]
    if errors:
        raise environment_failure(f"{len(errors)} of {len(requests)} requests failed: {errors[0]}")
    return figures_of(requests, clients)


def _written(url: str, count: int = 0) -> Figures:
    """What the stand-in wrote for its last requests, without a throughput. Begins a new record."""
    with no_proxy().open(urllib.request.Request(f"{url}{RECORD}"), timeout=30) as answer:
        answers = sorted(json.load(answer)["answers"])[-count:]
    columns = list(zip(*answers, strict=True))[1:]
    ttft, tpot = (1e3 * statistics.median(column) for column in columns)
    return Figures(ttft, tpot, 0.0)


def table(comparisons: list[Comparison]) -> list[str]:
    """The table in Markdown."""
    lines = [
        "| clients | figure | ours | vllm bench serve | ratio | ours / written | "
        "vllm bench serve / written |",
        "|---|---|---|---|---|---|---|",
    ]
    for comparison in comparisons:
        for name, title in NAMES.items():
            ours, theirs = (comparison.median(tool, name) for tool in (OURS, THEIRS))
            shares = [comparison.to_written(tool, name) for tool in (OURS, THEIRS)]
            written = " | ".join("" if share is None else f"{share:.3f}" for share in shares)
            lines.append(
                f"| {comparison.clients} | {title} | {ours:.5g} | {theirs:.5g} | "
                f"{comparison.ratio(name):.3f} | {written} |"
            )
    return lines
