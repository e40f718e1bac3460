"""vLLM's OpenAI server over streaming HTTP, measured as a client sees it."""

import asyncio
import contextlib
import json
import time
import urllib.request

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from conf.errors import QuantlineError, bad_input
from conf.schema.load import ScenarioConfig
from evaluate.measure.engines import NO_JUDGE, Engine, Loaded, LoadRequest
from evaluate.measure.engines.vllm import engine_settings
from evaluate.measure.engines.vllm_log import loaded
from evaluate.measure.metrics import Request
from evaluate.measure.workload import schedule
from serve.engine.client import key_headers, no_proxy, post, served_name
from serve.engine.launch import running_server
from serve.engine.process import ServerProcess

NAME = "measured"
SECONDS_FOR_A_RUN = 3600


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
        self.url = self.server.url
        try:
            self.loaded = loaded(load)
        except BaseException:
            self.stack.close()
            raise
        self.loaded.startup.start_s = time.perf_counter() - begin

    def run_requests(self, prompts: list[list[int]], scenario: ScenarioConfig) -> list[Request]:
        return asyncio.run(self._send_all(prompts, scenario))

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

    async def _send_all(self, prompts: list[list[int]], scenario: ScenarioConfig) -> list[Request]:
        """Sends each prompt at its arrival time, with at most `at_once` running."""
        arrivals, at_once = schedule(prompts, scenario)
        gate, takes_turns = asyncio.Semaphore(at_once), at_once < len(prompts)
        limits = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=SECONDS_FOR_A_RUN)
        async with aiohttp.ClientSession(
            self.url, connector=limits, timeout=timeout, headers=key_headers()
        ) as session:
            begin = time.perf_counter()

            async def send_request(prompt: list[int], arrival: float) -> Request:
                await asyncio.sleep(arrival)
                async with gate:
                    now = time.perf_counter() - begin
                    request = Request(0, [], start=now if takes_turns else arrival)
                    try:
                        await self._stream(session, prompt, scenario.output_tokens, request, begin)
                    except (aiohttp.ClientError, TimeoutError) as error:
                        request.error = f"{type(error).__name__}: {error}"
                        request.token_times = []
                    return request

            tasks = [
                send_request(prompt, arrival)
                for prompt, arrival in zip(prompts, arrivals, strict=True)
            ]
            return list(await asyncio.gather(*tasks))

    async def _stream(
        self,
        session: aiohttp.ClientSession,
        prompt: list[int],
        output_tokens: int,
        request: Request,
        begin: float,
    ) -> None:
        body = {
            "model": self.name,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        async with session.post("/v1/completions", json=body) as answer:
            if answer.status != 200:
                request.error = f"HTTP {answer.status}: {(await answer.text())[:200]}"
                return
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                now = time.perf_counter() - begin
                chunk = json.loads(line[len(b"data: ") :])
                if usage := chunk.get("usage"):
                    request.input_tokens = usage["prompt_tokens"]
                    new = usage["completion_tokens"] - request.output_tokens
                    request.token_times += [now] * new


def is_total(name: str) -> bool:
    """Whether a sample is the counter itself; the other one is its creation time."""
    return name.endswith("_total")


ENGINE = ServerEngine
