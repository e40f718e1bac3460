"""vLLM's OpenAI server over streaming HTTP, measured as a client sees it."""

import contextlib
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from conf.errors import QuantlineError, bad_input
from evaluate.measure.engines import NO_JUDGE, Engine, Loaded, LoadRequest, Stop
from evaluate.measure.engines.http_client import SECONDS_FOR_A_RUN, Server, send_load
from evaluate.measure.engines.vllm import engine_settings
from evaluate.measure.engines.vllm_log import loaded
from evaluate.measure.metrics import Request
from evaluate.measure.workload import Load
from serve.engine.client import key_headers, no_proxy, post, served_name
from serve.engine.launch import running_server
from serve.engine.process import ServerProcess

NAME = "measured"


class ServerEngine(Engine):
    """A server that is started for the evaluation, or one that is running already."""

    def __init__(self, load: LoadRequest) -> None:
        self.stack = contextlib.ExitStack()
        self.server: ServerProcess | None = None
        begin = time.perf_counter()
        if load.engine.url:
            self.url = load.engine.url.rstrip("/")
            self.name = served_name(self.url)
            self.loaded = Loaded()
            return
        self.name = NAME
        settings = engine_settings(load)
        settings.pop("skip_tokenizer_init", None)  # a server always sends text
        starting = running_server(load.folder, settings, NAME, load.log)
        self.server = self.stack.enter_context(starting)
        self.url, self.server_process = self.server.url, self.server.process.pid
        try:
            self.loaded = loaded(load)
        except BaseException:
            self.stack.close()
            raise
        self.loaded.startup.start_s = time.perf_counter() - begin

    def run_requests(self, load: Load, stop: Stop | None = None) -> list[Request]:
        return send_load(Server(self.url, self.name, key_headers()), load, stop)

    def answers(self, prompts: list[str], tokens: int) -> list[list[int]]:
        """The answers as character codes, because a server sends text. Constant output is visible
        in them as well."""
        texts = [self._ask(prompt, tokens) for prompt in prompts]
        return [[ord(character) for character in text.strip()] for text in texts]

    def tokens_of(self, text: str) -> list[int]:
        raise bad_input(NO_JUDGE)

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        raise bad_input(NO_JUDGE)

    def prefix_cache(self) -> tuple[float, float]:
        request = urllib.request.Request(f"{self.url}/metrics", headers=key_headers())
        with no_proxy().open(request, timeout=30) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        totals = {
            family.name: sum(sample.value for sample in family.samples if is_total(sample.name))
            for family in families
        }
        hits = totals.get("vllm:prefix_cache_hits", 0.0)
        return hits, totals.get("vllm:prefix_cache_queries", 0.0)

    def death(self) -> QuantlineError | None:
        return self.server.late_death() if self.server else None

    def close(self) -> None:
        self.stack.close()

    def _ask(self, prompt: str, tokens: int) -> str:
        body = {"model": self.name, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        answer = post(self.url, "/v1/completions", body, SECONDS_FOR_A_RUN)
        return str(answer["choices"][0]["text"])


def is_total(name: str) -> bool:
    """Whether a sample is the counter itself; the other one is its creation time."""
    return name.endswith("_total")


ENGINE = ServerEngine
