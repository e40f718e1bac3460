"""The commands' names, version and help, and output whose reader has gone."""

import contextlib
import os
import re
import select
import sys

from conf import ROOT, VERSION
from conf.errors import BAD_INPUT, unknown
from conf.escaping import escaped

# Name after `quantline`, module after `python -m`, purpose.
COMMANDS = (
    ("quantize", "quantize", "Calibrates a model by a recipe and publishes the checkpoint."),
    ("verify", "quantize.verify", "Verifies a compressed-tensors checkpoint."),
    ("evaluate", "evaluate", "Measures checkpoints beside the original."),
    ("compare", "evaluate.compare", "Compares two sets of runs: faster, slower, or a tie."),
    ("merge", "evaluate.merge", "Adds what the jobs of a sweep left to its results."),
    ("report", "evaluate.report", "Writes the report: which checkpoint to serve."),
    ("tune", "evaluate.tune", "Searches the fastest engine settings of one checkpoint."),
    ("serve", "serve", "Serves a checkpoint, or asks it one question."),
    ("kernels", "serve.kernels", "Shows which kernel is the fastest for which layer."),
    ("limits", "evaluate.limits", "Measures this machine's bandwidth and matrix products."),
    ("quantize.benchmark", "quantize.benchmark", "Compares quantizing with llm-compressor's own."),
    ("evaluate.kernels", "evaluate.kernels", "Times kernels one by one beside torch's bf16."),
    ("evaluate.traffic", "evaluate.traffic", "Writes the lengths of traffic, without its texts."),
    ("evaluate.sweep.benchmark", "evaluate.sweep.benchmark", "Measures what a launcher costs."),
    ("evaluate.traffic_check", "evaluate.traffic_check", "Compares our load with vLLM's."),
    ("evaluate.benchmark", "evaluate.benchmark", "Compares timed runs with plain vLLM."),
)
NAMES = {module: name for name, module, _ in COMMANDS}
MODULES = {name: module for name, module, _ in COMMANDS} | {module: module for module in NAMES}
# A wheel keeps the packages inside `quantline`, where `python -m quantize` does not find them.
IS_WHEEL = (ROOT / "__init__.py").is_file()
CALL = re.compile(r"python -m ([a-z_]+(?:\.[a-z_]+)*)")
CLOSED_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


def as_called(text: str) -> str:
    """The text with our commands as users call them here: `quantline NAME` from a wheel."""
    if not IS_WHEEL:
        return text
    return CALL.sub(
        lambda call: f"quantline {NAMES[call[1]]}" if call[1] in NAMES else call[0], text
    )


def set_child_import_path() -> None:
    """Makes the Python processes that this one starts, vLLM's included, import our packages from
    here, not from the user's folder."""
    existing = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(ROOT), *[path for path in existing if path and path != str(ROOT)]]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYTHONSAFEPATH"] = "1"


def answer_flags(arguments: list[str], help_text: str) -> None:
    """Answers --help and --version, and exits; returns where neither was given."""
    if "--help" in arguments or "-h" in arguments:
        show(as_called(help_text))
        sys.exit(0)
    if "--version" in arguments:
        show(f"quantline {VERSION}")
        sys.exit(0)


def show(text: str) -> None:
    """Prints the text. A reader that closes the pipe early, such as `head`, is no error."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)
    drop_unread_output()


def drop_unread_output() -> bool:
    """Discards the rest of an output that nobody reads, and returns whether there is one. Otherwise
    the interpreter complains when it flushes its streams at exit."""
    has_unread_output = False
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # closed by the parent process
            continue
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
        with contextlib.suppress(OSError):  # a stream without a descriptor is no pipe
            if _has_no_reader(stream.fileno()):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                has_unread_output = True
    return has_unread_output


def _has_no_reader(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    # A pipe without a reader has the one, a closed terminal the other.
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def chosen_module(arguments: list[str]) -> str:
    """The module of the command that the arguments of `quantline` name."""
    name = arguments[0] if arguments else ""
    if not name:
        print(overview(), file=sys.stderr)
        sys.exit(BAD_INPUT)
    if name.startswith("-"):
        answer_flags([name], overview())
    if name not in MODULES:
        error = unknown("quantline", name, [name for name, _, _ in COMMANDS])
        print(escaped(f"error: {error}"), file=sys.stderr)
        sys.exit(BAD_INPUT)
    return MODULES[name]


def overview() -> str:
    width = max(len(name) for name, _, _ in COMMANDS)
    rows = [f"  {name.ljust(width)}  {purpose}" for name, _, purpose in COMMANDS]
    return "\n".join(
        [
            "quantline COMMAND [OPTION=VALUE] ...",
            "",
            "Which quantization of a language model to serve.",
            "",
            "Commands; `quantline COMMAND --help` shows the options of each",
            *rows,
            "",
            "  --version                        Prints the version.",
            "  --shell-completion install=bash  Prints a script that bash evaluates.",
        ]
    )
