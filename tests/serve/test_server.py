"""A real server of `tiny`: streams, keys, logs, a killed engine, a stop under load."""

import asyncio
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import openai
import psutil
import pytest

from serve.canary import MOST_SURPRISE, Question
from serve.engine.process import check_port, free_port
from tests.processes import wait_until_gone

WORDS = 1024  # that tiny knows
KEY = "sesame-opens-the-door"
SECRET_PROMPT = "platypus-umbrella-seventeen"
START_LIMIT_S = 900  # of a machine that does much else
LONG = 160  # tokens of an answer that is still being written when the server is told to stop
LONGEST = 1500  # of one that is not done by then
MANY = 200  # of those; more than run at once, so that some have not begun
pytestmark = pytest.mark.slow


class Served:
    """`python -m serve` as a user runs it, and what it says."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.said = folder / "said"
        (folder / "key").write_text(f"{KEY}\n")
        command = [
            *(sys.executable, "-m", "serve", f"checkpoint={checkpoint}", f"port={self.port}"),
            *(f"api_key_file={folder / 'key'}", "restart=on-failure", "drain_s=300"),
        ]
        variables = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
        variables.pop("VLLM_API_KEY", None)
        with self.said.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=variables)

    @property
    def text(self) -> str:
        return self.said.read_text()

    @property
    def log(self) -> Path:
        found = re.search(r"log in (\S+)\)", self.text)
        assert found
        return Path(found[1])

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_until(self, words: str, times: int = 1) -> None:
        limit = time.monotonic() + START_LIMIT_S
        while self.text.count(words) < times:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < limit, self.text
            time.sleep(0.5)

    def status(
        self, path: str, key: str = "", body: object = None, method: str | None = None
    ) -> int:
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=START_LIMIT_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture(scope="module")
def served(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tiny_checkpoint, tmp_path_factory.mktemp("served"))
    try:
        found.wait_until("ready after")
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
            found.process.wait()


def is_refused(served: Served) -> bool:
    """Whether a new request is turned away: by a server that drains, or because it is gone."""
    try:
        return served.status("/v1/completions", KEY, {"model": "tiny", "prompt": "x"}) == 503
    except urllib.error.URLError:
        return True


def client(served: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0)


@dataclass
class Answer:
    """What arrived of an answer, and how it ended."""

    tokens: int = 0
    finish_reason: str | None = None


async def streamed(
    asking: openai.AsyncOpenAI, tokens: int, began: asyncio.Event | None = None
) -> Answer:
    """An answer that arrives in parts, to its end."""
    answer = Answer()
    stream = await asking.completions.create(
        model="tiny", prompt=SECRET_PROMPT, max_tokens=tokens, stream=True, temperature=0,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
    )  # fmt: skip
    async for part in stream:
        answer.tokens = part.usage.completion_tokens if part.usage else answer.tokens
        for choice in part.choices:
            answer.finish_reason = choice.finish_reason or answer.finish_reason
        if began is not None:
            began.set()
    return answer


async def last_finish_reason(session: aiohttp.ClientSession) -> str:
    """How a long stream ends. Its parts are not looked at: there are many, and all at once."""
    body = {"model": "tiny", "prompt": SECRET_PROMPT, "max_tokens": LONGEST, "stream": True}
    async with session.post("/v1/completions", json=body | {"ignore_eos": True}) as answer:
        text = await answer.text()
    assert text.endswith("data: [DONE]\n\n")
    (reason,) = re.findall(r'"finish_reason": ?"(\w+)"', text)
    return str(reason)


async def stopped_under_load(served: Served) -> tuple[list[Answer], list[str], bool]:
    """Told to stop while some answers are nearly done and many are not; told again when the first
    have arrived. Those, how the others ended, and whether new requests were refused."""
    headers = {"Authorization": f"Bearer {KEY}"}
    connector, limit = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(START_LIMIT_S)
    async with (
        client(served) as asking,
        aiohttp.ClientSession(
            served.url, connector=connector, timeout=limit, headers=headers
        ) as session,
    ):
        began = [asyncio.Event() for _ in range(4)]
        short = [asyncio.create_task(streamed(asking, LONG, event)) for event in began]
        await asyncio.gather(*(event.wait() for event in began))
        long = [asyncio.create_task(last_finish_reason(session)) for _ in range(MANY)]
        running = 0
        while running < MANY:
            assert not any(task.done() for task in long)
            async with session.get("/ready") as answer:
                running = (await answer.json())["running"]
        served.process.send_signal(signal.SIGTERM)
        is_draining = False
        while not is_draining:  # its process has read the signal
            async with session.get("/ready") as answer:
                is_draining = (await answer.json())["draining"]
        late = await asyncio.to_thread(is_refused, served)
        finished = await asyncio.gather(*short)
        served.process.send_signal(signal.SIGTERM)  # the others are not waited for
        return finished, await asyncio.gather(*long), late


def test_words_that_the_model_might_say_surprise_it_less_than_nonsense(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real server: a checkpoint of few certainties is known by what it expects."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    question = Question(served.url, "tiny", "A list is", is_chat=False, vocabulary=WORDS)
    own = question.answer()
    assert question.surprise(own) < 1
    assert question.surprise("zq Paris 7 ]] kangaroo") > MOST_SURPRISE
    assert replace(question, vocabulary=2).surprise(own) == math.inf


def test_it_says_what_it_found_and_lines_that_work(served: Served) -> None:
    assert "proven; CPUInt8ScaledMM" in served.text
    assert "canary: " in served.text
    assert "dtype=" in served.text or "enforce_eager=" in served.text
    for start in ("curl ", f"{sys.executable} -c "):
        line = next(line for line in served.text.splitlines() if line.startswith(start))
        result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert "completion" in result.stdout.lower()


def test_many_streams_at_once_all_arrive(served: Served) -> None:
    async def ask() -> list[Answer]:
        async with client(served) as asking:
            return await asyncio.gather(*(streamed(asking, 12) for _ in range(8)))

    assert asyncio.run(ask()) == [Answer(12, "length")] * 8


def test_only_health_and_ready_are_open(served: Served) -> None:
    assert served.status("/health") == 200
    assert served.status("/ready") == 200
    body = {"model": "tiny", "prompt": SECRET_PROMPT, "max_tokens": 1}
    for path in ("/v1/models", "/metrics", "/version", "/docs", "/openapi.json", "/tokenize"):
        assert served.status(path) == 401, path
        assert served.status(path, "a wrong key") == 401, path
    assert served.status("/v1/completions", "a wrong key", body) == 401
    assert served.status("/v1/completions", KEY, body) == 200
    assert served.status("/metrics", KEY) == 200
    assert served.status("/metrics", method="OPTIONS") == 401


def test_neither_key_nor_prompt_is_in_any_log_or_process_list(served: Served) -> None:
    wrong = {"model": "tiny", "prompt": {"not": SECRET_PROMPT}, "max_tokens": -3}
    assert served.status("/v1/completions", KEY, wrong) == 400
    assert served.status("/v1/completions", KEY, {"prompt": SECRET_PROMPT, "model": "no"}) == 404
    processes = [psutil.Process(served.process.pid), *served.family()]
    lists = " ".join(" ".join(process.cmdline()) for process in processes)
    for text in (served.text, served.log.read_text(errors="replace"), lists):
        assert KEY not in text
        assert SECRET_PROMPT not in text


def test_it_listens_on_this_machine_only(served: Served) -> None:
    listening = [
        connection.laddr.ip
        for process in served.family()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == served.port
    ]
    assert set(listening) == {"127.0.0.1"}


def test_a_killed_engine_is_brought_back_and_a_stop_under_load_loses_nothing(
    served: Served,
) -> None:
    engine = next(p for p in served.family() if "EngineCore" in (p.name() + " ".join(p.cmdline())))
    engine.kill()
    served.wait_until("starting again in 1 s")
    assert "the engine's process was killed or crashed" in served.text
    served.wait_until("ready after", times=2)
    family = served.family()

    finished, ended, late = asyncio.run(stopped_under_load(served))
    assert finished == [Answer(LONG, "length")] * 4
    assert ended == ["abort"] * MANY
    assert late
    assert served.process.wait(START_LIMIT_S) == 0, served.text
    assert f"stopped; requests ended with finish_reason abort: {MANY}" in served.text
    wait_until_gone(family)
    check_port("127.0.0.1", served.port)


def test_a_stop_before_it_is_ready_waits_for_nothing(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Its limit for running requests, 300 s, is longer than the test waits."""
    starting = Served(tiny_checkpoint, tmp_path)
    try:
        starting.wait_until("starting vLLM (log in")
        starting.process.send_signal(signal.SIGINT)
        assert starting.process.wait(240) == 0, starting.text
        assert starting.text.rstrip().endswith("stopping\nstopped")
    finally:
        starting.process.kill()
        starting.process.wait()


def test_the_printed_command_is_the_one_that_runs(tiny_checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "serve", f"checkpoint={tiny_checkpoint}", "dry_run=true"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = shlex.split(printed)
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert "vllm.entrypoints.openai.api_server" in words
