"""Runs `vllm bench serve` in a process of its own, and reads its figures."""

import json
import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conf.errors import environment_failure, last_line
from conf.schema.traffic_check import TrafficCheckConfig
from evaluate.measure.metrics import Request
from evaluate.traffic_check.figures import Figures, figures_of
from serve.engine.client import API_KEY

WORDS = 1000
RESULT = "result.json"
# `vllm bench serve`, without the command `vllm`: that one does not start in vLLM's CPU build.
SCRIPT = (
    "from argparse import ArgumentParser; from vllm.benchmarks import serve; "
    "parser = ArgumentParser(); serve.add_cli_args(parser); serve.main(parser.parse_args())"
)


def bench(
    config: TrafficCheckConfig, url: str, model: str, tokenizer: str, clients: int, folder: Path
) -> Figures:
    """Its figures for so many clients."""
    options = {
        "backend": "openai",
        "base-url": url,
        "model": model,
        "tokenizer": tokenizer,
        "dataset-name": "random",
        "random-input-len": config.input_tokens,
        "random-output-len": config.output_tokens,
        "num-prompts": clients * config.rounds,
        "max-concurrency": clients,
        "num-warmups": clients,  # opens the connections, as ours are
        "result-dir": folder,
        "result-filename": RESULT,
    }
    flags = ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words, *flags],
        env=_environment(url),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if process.returncode or not (folder / RESULT).is_file():
        raise environment_failure(f"vllm bench serve failed: {last_line(process.stdout)}")
    result = json.loads((folder / RESULT).read_text())
    if result["completed"] != clients * config.rounds:
        raise environment_failure(
            f"vllm bench serve: {result['completed']} of {clients * config.rounds} requests were "
            "answered"
        )
    return figures_of(requests_of(result), clients)


def requests_of(result: dict[str, Any]) -> list[Request]:
    """Its requests as ours: it has the time of the first token, and the gaps between tokens."""
    columns = (result[name] for name in ("start_times", "ttfts", "itls"))
    return [
        Request(0, list(accumulate([start + ttft, *gaps])), start)
        for start, ttft, gaps in zip(*columns, strict=True)
    ]


def _environment(url: str) -> dict[str, str]:
    """Its variables: no proxy before the server, and the server's key under the name it expects."""
    host = urlsplit(url).hostname or ""
    variables = {"NO_PROXY": host, "no_proxy": host}
    if API_KEY in os.environ:
        variables["OPENAI_API_KEY"] = os.environ[API_KEY]
    return os.environ | variables


def write_tokenizer(folder: Path) -> None:
    """A small tokenizer of whole words, for a server that reads no tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"w{number}": number for number in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
