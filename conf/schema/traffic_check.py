"""Options of the check of the load generator."""

from dataclasses import dataclass, field

from conf.schema.checks import check_url
from conf.schema.ranges import MILLISECONDS_MOST, TOKENS_MOST, above, within


@dataclass
class TrafficCheckConfig:
    """Measures one server with our load generator and with `vllm bench serve`, in turns, and
    compares the figures. The server is a stand-in that writes tokens at a fixed pace, or a running
    one."""

    url: str | None = None
    """A running OpenAI-compatible server to measure, in place of the stand-in."""
    tokenizer: str | None = None
    """For url: folder or hub id of the model's tokenizer, which vllm bench serve needs."""
    clients: list[int] = field(default_factory=lambda: [16, 64, 256], metadata=within(1, 4096))
    """Numbers of clients that wait for their answers."""
    rounds: int = field(default=4, metadata=within(2, 10000))
    """Requests of each client. The first ones do not count."""
    input_tokens: int = field(default=128, metadata=within(1, TOKENS_MOST))
    """Tokens of a prompt."""
    output_tokens: int = field(default=32, metadata=within(2, TOKENS_MOST))
    """Tokens of an answer."""
    ttft_ms: float = field(default=1000.0, metadata=above(0, MILLISECONDS_MOST))
    """Of the stand-in: mean time to the first token."""
    tpot_ms: float = field(default=100.0, metadata=above(0, MILLISECONDS_MOST))
    """Of the stand-in: time between two tokens of a request."""
    in_steps: bool = False
    """Of the stand-in: write the tokens of all requests at the same moments, as an engine does."""
    repeats: int = field(default=3, metadata=within(1, 100))
    """Runs of both tools for each number of clients, in turns. Ratios are medians over them."""
    max_difference: float = field(default=0.03, metadata=above(0, 1))
    """Gate: exit 4 where a figure of the two tools differs by more than this share."""

    def __post_init__(self) -> None:
        if not self.clients:
            raise ValueError("clients=[]: give numbers of clients, as [16,64]")
        if self.url is not None:
            check_url("url", self.url)
        if self.url is not None and self.tokenizer is None:
            raise ValueError("url=...: needs tokenizer=FOLDER of the model that is served")
        if self.url is None and self.tokenizer is not None:
            raise ValueError("tokenizer=...: works only with url=URL")
