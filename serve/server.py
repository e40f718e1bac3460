"""Serves a checkpoint: resolves it, checks it, chooses options, and watches the server."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from conf import ROOT
from conf.cache import log_file
from conf.durations import duration
from conf.entry import IS_WHEEL, drop_unread_output
from conf.errors import ENVIRONMENT_FAILURE, QuantlineError, bad_input, gate_failed
from conf.hardware import resolve_gpu
from conf.models import has_chat_template, read_config
from conf.schema.commands import ServeConfig
from conf.schema.kernels import KernelsConfig
from conf.schema.load import GpuConfig
from conf.signals import ending_signals
from conf.terminal import plain_console, say
from serve.canary import Canary, ask_canary
from serve.checks import check, is_verifiable, support_of
from serve.engine.client import API_KEY
from serve.engine.launch import (
    on_cpu,
    options,
    say_unused_kernels,
    server_command,
    server_environment,
)
from serve.engine.process import POLL_S, ServerProcess, check_port
from serve.fit import check_parallel, fit
from serve.kernels.settings import with_kernels
from serve.middleware import OPEN
from serve.option_reasons import ChosenOptions, choose_options
from serve.resolving import ServedCheckpoint, resolve
from serve.start_times import StartTimes

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
LONGEST_KEY = 4096
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_S = 300.0  # after so long a run, a failure has another cause than the last one


def serve(config: ServeConfig) -> None:
    """Serves until it is told to stop."""
    key = _api_key(config)
    options(config.engine)  # raises for an invalid option before the checkpoint is resolved
    say_unused_kernels(config.engine)
    served = resolve(config)
    if served.why:
        say(f"{config.results}: {served.why}")
    if served.kernels is not None and config.engine.kernels.families is None:
        config.engine.kernels = _with_layouts(served.kernels, config.engine.kernels)
    _check_servable(served.folder, config)
    requested = options(config.engine) | served.options | config.engine.options
    if not on_cpu():
        requested = with_kernels(requested, config.engine.kernels)
    memory = fit(served.folder, requested)
    chosen = choose_options(config.engine, served, memory)
    check_parallel(served.folder, chosen.options)
    for line in chosen.lines:
        say(line)
    command = server_command(served.folder, chosen.options, config.host, config.port, served.name)
    if config.dry_run:
        if key and not config.api_key_file:
            say(f"set {API_KEY} to the key where you run this command, as it is set here")
        file = config.api_key_file
        key_prefix = f'{API_KEY}="{_shell_expression(file)}" ' if file else ""
        print(key_prefix + _import_path_prefix() + shlex.join(command))
        return
    check_port(config.host, config.port)
    if key:
        os.environ[API_KEY] = key
        say(f"every route requires the key, except {' and '.join(OPEN)}")
    Watch(config, served, chosen, command).run()


def _import_path_prefix() -> str:
    """Variables that let vLLM find our middleware when the command is run by hand from a wheel."""
    return f"PYTHONPATH={shlex.quote(str(ROOT))} PYTHONSAFEPATH=1 " if IS_WHEEL else ""


def _api_key(config: ServeConfig) -> str:
    """The key, from a file or the environment: every user can read a command line."""
    key, source = os.environ.get(API_KEY, "").strip(), API_KEY
    if config.api_key_file:
        path = Path(config.api_key_file).expanduser()
        source = f"api_key_file={path}"
        try:
            with path.open(encoding="utf-8") as file:
                key = file.readline(LONGEST_KEY + 1).strip()
        except OSError as error:
            raise bad_input(f"{source}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise bad_input(f"{source}: is no text") from error
        if not key:
            raise bad_input(f"{source}: its first line is empty")
        if len(key) > LONGEST_KEY:
            raise bad_input(f"{source}: its first line has more than {LONGEST_KEY} characters")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise bad_input(f"{source}: a key has only printable ASCII characters and no spaces")
    if config.host not in LOOPBACK and not key:
        raise bad_input(
            f"host={config.host}: other machines could call it; set {API_KEY} or api_key_file first"
        )
    return key


def _absolute_path(key_file: str) -> str:
    return str(Path(key_file).expanduser().resolve())


def _shell_expression(key_file: str) -> str:
    """A shell expression that reads the key, so that no command line shows it."""
    return f"$(head -n1 {shlex.quote(_absolute_path(key_file))})"


def _with_layouts(measured: KernelsConfig, given: KernelsConfig) -> KernelsConfig:
    """The kernels that were measured, with the user's own choice of layouts."""
    if given.second_layout is None:
        return measured
    return replace(measured, second_layout=given.second_layout)


def _check_servable(folder: Path, config: ServeConfig) -> None:
    """Checks the checkpoint, and that its format runs on this machine."""
    check(folder, folder, config.engine)
    here, requested = resolve_gpu(GpuConfig()), config.gpu
    if requested.name and requested.name != here.name and not config.dry_run:
        raise bad_input(f"gpu={requested.name}: this machine has {here.name}")
    kernel = support_of(folder, requested)
    if not kernel.runs:
        raise bad_input(f"{folder}: {kernel.summary}; serve {kernel.instead} instead")
    state = "proven" if is_verifiable(read_config(folder)) else "whole"
    better = f"; better: {kernel.instead}" if kernel.instead else ""
    say(f"{folder}: {state}; {kernel.summary}{better}")


@dataclass
class Signals:
    """Counts how often the server was told to stop."""

    stops: int = 0

    @property
    def is_wanted(self) -> bool:
        return self.stops == 0

    @property
    def is_impatient(self) -> bool:
        return self.stops > 1


@contextmanager
def stop_signals() -> Iterator[Signals]:
    """Counts SIGINT, SIGTERM and SIGHUP instead of ending on them; under `nohup`, not SIGHUP."""
    signals = Signals()

    def count(*_: object) -> None:
        drop_unread_output()  # a closed terminal takes no more words
        signals.stops += 1

    numbers = (signal.SIGINT, *ending_signals())
    earlier_handlers = {number: signal.signal(number, count) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)


class Watch:
    """Runs a server to its end, and restarts it where the options say so."""

    def __init__(
        self,
        config: ServeConfig,
        served: ServedCheckpoint,
        chosen: ChosenOptions,
        command: list[str],
    ) -> None:
        self.config, self.served, self.chosen, self.command = config, served, chosen, command
        host = EVERYWHERE.get(config.host, config.host)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{config.port}"
        self.log = log_file(f"serve-{served.name}-{os.getpid()}")
        self.start_times = StartTimes(served.folder, command)
        self.was_ready = False
        self.ready_since: float | None = None

    def run(self) -> None:
        pause = FIRST_PAUSE_S
        with stop_signals() as signals:
            while True:
                self.ready_since = None
                death = self._run_once(signals)
                if not signals.is_wanted or death is None:
                    return
                if self.config.restart == "never" or not self.was_ready:
                    raise death
                if self.ready_since and time.monotonic() - self.ready_since > STEADY_S:
                    pause = FIRST_PAUSE_S
                say(f"{death}; starting again in {duration(pause)}")
                self._wait(pause, signals)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                if not signals.is_wanted:
                    return

    def _wait(self, seconds: float, signals: Signals) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and signals.is_wanted:
            time.sleep(POLL_S)

    def _run_once(self, signals: Signals) -> Exception | None:
        """Runs the server once; returns why it died, or None where it was told to stop."""
        say(f"{self.served.folder}: starting vLLM (log in {self.log})")
        server = ServerProcess(
            self.command, server_environment(self.config.engine.options), self.url, self.log, True
        )
        try:
            try:
                self._start(server, signals)
            except QuantlineError as error:
                if error.exit_code != ENVIRONMENT_FAILURE:
                    raise
                return error
            while signals.is_wanted:
                if not server.is_alive():
                    return server.death()
                time.sleep(POLL_S)
            self._stop(server, signals)
            return None
        finally:
            server.stop()

    def _stop(self, server: ServerProcess, signals: Signals) -> None:
        """Stops the server. Running requests may finish; before it was ready there are none."""
        drain_s = self.config.drain_s if self.ready_since else None
        hint = (
            f": {duration(drain_s)} for running requests; interrupt again to stop at once"
            if drain_s
            else ""
        )
        say(f"stopping{hint}")
        stopped = server.stop(drain_s, lambda: signals.is_impatient)
        counts = [(stopped.aborted, "ended with finish_reason abort"), (stopped.cut, "cut short")]
        endings = [f"; requests {ending}: {count}" for count, ending in counts if count]
        say(f"stopped{''.join(endings)}")

    def _start(self, server: ServerProcess, signals: Signals) -> None:
        console = plain_console(stderr=True)
        begin = time.monotonic()
        with console.status("starting vLLM") as status:

            def show_phase(phase: str) -> None:
                line = f"{phase} ({self.start_times.time_left(time.monotonic() - begin)})"
                if console.is_terminal:
                    status.update(line)
                else:
                    say(line)

            server.wait_until_healthy(show_phase, lambda: signals.is_wanted)
        if not signals.is_wanted:
            return
        self.start_times.remember(time.monotonic() - begin)
        if self.config.canary != "off" and not self._ask_canary(server, signals):
            return
        server.mark_ready()
        self.was_ready = True
        self.ready_since = time.monotonic()
        self._say_address(time.monotonic() - begin)

    def _ask_canary(self, server: ServerProcess, signals: Signals) -> bool:
        """Asks the canary while it watches signals and the server; returns whether to go on."""
        with ThreadPoolExecutor(1) as executor:
            pending = executor.submit(ask_canary, self.served.folder, self.url, self.served.name)
            while not pending.done():
                if not signals.is_wanted or not server.is_alive():
                    server.stop()  # ends the request, too
                    break
                time.sleep(POLL_S)
            failure = pending.exception()
        if not signals.is_wanted:
            return False
        if not server.is_alive():
            raise server.death()
        if failure is not None:
            raise failure
        self._report_canary(pending.result())
        return True

    def _report_canary(self, canary: Canary) -> None:
        if canary.fault and self.config.canary == "check":
            raise gate_failed(f"{canary.fault}; canary=warn serves it anyway")
        if canary.fault:
            say(f"warning: {canary.fault}")
        elif canary.differs:
            say("canary: the answer differs from the recorded one, which is nearly as likely")
        elif canary.expected:
            say(f"canary: the answer agrees with the recorded one to {canary.likeness:.0%}")
        else:
            say("canary: it answers; there is no recorded answer to compare with")

    def _say_address(self, seconds: float) -> None:
        say(f"ready after {duration(seconds)}: {self.url}/v1, with /health, /ready and /metrics")
        key_file = self.config.api_key_file if os.environ.get(API_KEY) else None
        for line in examples(self.served, self.url, bool(os.environ.get(API_KEY)), key_file):
            print(line, flush=True)


def examples(
    served: ServedCheckpoint, url: str, with_key: bool, key_file: str | None = None
) -> list[str]:
    """Commands that users can run as they are printed."""
    is_chat = has_chat_template(served.folder)
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    body = '"messages": [{"role": "user", "content": "Hello"}]' if is_chat else '"prompt": "Hello"'
    shell_key, python_key = f"${API_KEY}", f'os.environ["{API_KEY}"]'
    if key_file:
        shell_key = _shell_expression(key_file)
        python_key = f"open({json.dumps(_absolute_path(key_file))}).readline().strip()"
    header = f' -H "Authorization: Bearer {shell_key}"' if with_key else ""
    python_key = python_key if with_key else '"none"'
    client = f'openai.OpenAI(base_url="{url}/v1", api_key={python_key})'
    call = "chat.completions" if is_chat else "completions"
    prompt_argument = body.replace('"messages": ', "messages=").replace('"prompt": ', "prompt=")
    arguments = f"model={json.dumps(served.name)}, {prompt_argument}, max_tokens=32"
    python = f"import openai, os; print({client}.{call}.create({arguments}))"
    data = f'{{"model": {json.dumps(served.name)}, {body}, "max_tokens": 32}}'
    return [
        f"curl {url}{path} -H 'Content-Type: application/json'{header} -d {shlex.quote(data)}",
        f"{shlex.quote(sys.executable)} -c {shlex.quote(python)}",
    ]
