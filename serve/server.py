"""The story of a server: what to serve, whether it may be, how, and watching it until it ends."""

import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from conf.cache import log_file
from conf.errors import bad_input, gate_failed
from conf.hardware import compute_capability, resolve_gpu
from conf.kernels import support
from conf.models import has_chat_template, read_config
from conf.schema import ServeConfig
from conf.terminal import say
from serve.canary import listen
from serve.checkpoint import check
from serve.choices import Choices, choices
from serve.door import OPEN
from serve.engine import API_KEY, options, server_command, server_environment
from serve.find import Found, find
from serve.fit import check_parallel, fit
from serve.process import POLL_S, ServerProcess, check_port
from serve.starts import Starts

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_S = 300.0  # a server that ran this long fails for another reason than the last time


def serve(config: ServeConfig) -> None:
    """Serves until it is told to stop."""
    key = _key(config)
    found = find(config)
    if found.why:
        say(f"{config.results}: {found.why}")
    _check(found.folder, config)
    fits = fit(found.folder, options(config.engine) | found.options)
    chosen = choices(config.engine, found, fits)
    check_parallel(found.folder, chosen.options)
    for line in chosen.lines:
        say(line)
    command = server_command(found.folder, chosen.options, config.host, config.port, found.name)
    if config.dry_run:
        print(shlex.join(command))
        return
    check_port(config.host, config.port)
    if key:
        os.environ[API_KEY] = key
        say(f"every route asks for the key, but {' and '.join(OPEN)}")
    Watch(config, found, chosen, command).run()


def _key(config: ServeConfig) -> str:
    """From a file or the environment; never from the command line, which everybody can read."""
    key = os.environ.get(API_KEY, "")
    if config.api_key_file:
        path = Path(config.api_key_file).expanduser()
        try:
            key = (path.read_text().splitlines() or [""])[0].strip()
        except OSError as error:
            raise bad_input(f"api_key_file={path}: cannot be read ({error.strerror})") from error
        if not key:
            raise bad_input(f"api_key_file={path}: its first line is empty")
    if "api_key" in config.engine.options:
        raise bad_input(f"engine.api_key: everybody here could read it; set {API_KEY} instead")
    if config.host not in LOOPBACK and not key:
        raise bad_input(
            f"host={config.host}: other machines could call it; set {API_KEY} or api_key_file first"
        )
    return key


def _check(folder: Path, config: ServeConfig) -> None:
    """The proof again, and whether its format runs here."""
    check(folder, folder, config.engine)
    quantization = read_config(folder).get("quantization_config") or {}
    gpu = resolve_gpu(config.gpu)
    found = support(quantization, compute_capability(gpu), os.uname().machine)
    if not found.runs:
        raise bad_input(f"{folder}: {found.words}; serve {found.instead} instead")
    say(
        f"{folder}: proven; {found.words}" + (f"; better: {found.instead}" if found.instead else "")
    )


@dataclass
class Signals:
    """How often the server was told to stop."""

    stops: int = 0

    @property
    def is_wanted(self) -> bool:
        return self.stops == 0

    @property
    def is_impatient(self) -> bool:
        return self.stops > 1


@contextmanager
def stop_signals() -> Iterator[Signals]:
    """Counts Ctrl-C and SIGTERM instead of dying of them."""
    found = Signals()

    def count(*_: object) -> None:
        found.stops += 1

    before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Watch:
    """A server from its start to its end, and again where that is wanted."""

    def __init__(
        self, config: ServeConfig, found: Found, chosen: Choices, command: list[str]
    ) -> None:
        self.config, self.found, self.chosen, self.command = config, found, chosen, command
        host = EVERYWHERE.get(config.host, config.host)
        self.url = f"http://{host}:{config.port}"
        self.log = log_file(f"serve-{found.name}-{os.getpid()}")
        self.starts = Starts(found.folder, command)
        self.was_ready = False

    def run(self) -> None:
        pause = FIRST_PAUSE_S
        with stop_signals() as signals:
            while True:
                begin = time.monotonic()
                death = self._once(signals)
                if not signals.is_wanted or death is None:
                    return
                if self.config.restart == "never" or not self.was_ready:
                    raise death
                if time.monotonic() - begin > STEADY_S:
                    pause = FIRST_PAUSE_S
                say(f"{death}; starting again in {pause:.0f} s")
                self._wait(pause, signals)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                if not signals.is_wanted:
                    return

    def _wait(self, seconds: float, signals: Signals) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and signals.is_wanted:
            time.sleep(POLL_S)

    def _once(self, signals: Signals) -> Exception | None:
        """One life of the server; why it died, or nothing where it was told to stop."""
        say(f"{self.found.folder}: starting vLLM (log in {self.log})")
        server = ServerProcess(self.command, server_environment(), self.url, self.log)
        try:
            self._start(server, signals)
            while signals.is_wanted:
                if not server.is_alive():
                    return server.death()
                time.sleep(POLL_S)
            say(f"stopping: {self.config.drain_s:g} s for what is running; again to stop at once")
            left = server.stop(self.config.drain_s, lambda: signals.is_impatient)
            say(f"stopped, {left} requests were cut short" if left else "stopped")
            return None
        finally:
            server.stop()

    def _start(self, server: ServerProcess, signals: Signals) -> None:
        console = Console(stderr=True)
        begin = time.monotonic()
        with console.status("starting vLLM") as status:

            def seen(phase: str) -> None:
                words = f"{phase} ({self.starts.left(time.monotonic() - begin)})"
                if console.is_terminal:
                    status.update(words)
                else:
                    say(words)

            server.wait_until_healthy(seen, lambda: signals.is_wanted)
        if not signals.is_wanted:
            return
        self.starts.remember(time.monotonic() - begin)
        if self.config.canary != "off":
            self._canary()
        server.say_ready()
        self.was_ready = True
        self._say_address(time.monotonic() - begin)

    def _canary(self) -> None:
        canary = listen(self.found.folder, self.url, self.found.name)
        if canary.fault and self.config.canary == "check":
            raise gate_failed(f"{canary.fault}; canary=warn serves it all the same")
        if canary.fault:
            say(f"warning: {canary.fault}")
        elif canary.expected:
            say(f"canary: {canary.likeness:.0%} of the words that it said when it was made")
        else:
            say("canary: it answers; there is no earlier answer to compare with")

    def _say_address(self, seconds: float) -> None:
        say(f"ready after {seconds:.0f} s: {self.url}/v1, beside it /health, /ready and /metrics")
        for line in examples(self.found, self.url, bool(os.environ.get(API_KEY))):
            print(line, flush=True)


def examples(found: Found, url: str, with_key: bool) -> list[str]:
    """Lines that work as they are printed."""
    chat = has_chat_template(found.folder)
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = '"messages": [{"role": "user", "content": "Hello"}]' if chat else '"prompt": "Hello"'
    header = f' -H "Authorization: Bearer ${API_KEY}"' if with_key else ""
    key = f"os.environ['{API_KEY}']" if with_key else "'none'"
    call = (
        "chat.completions.create(messages=[{'role': 'user', 'content': 'Hello'}],"
        if chat
        else "completions.create(prompt='Hello',"
    )
    client = f"openai.OpenAI(base_url='{url}/v1', api_key={key})"
    python = f"import openai, os; print({client}.{call} model='{found.name}', max_tokens=32))"
    return [
        f"curl {url}{path} -H 'Content-Type: application/json'{header} "
        f'-d \'{{"model": "{found.name}", {body}, "max_tokens": 32}}\'',
        f"python -c {shlex.quote(python)}",
    ]
