"""Answers one prompt with a checkpoint in vLLM."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.cache import log_file
from conf.errors import bad_input, environment_failure, one_line, reading
from conf.files.tokenizer_file import read_tokenizer
from conf.models import TOKENIZER
from conf.schema.load import EngineConfig
from conf.terminal import library_output_to, say
from serve.checks import check
from serve.engine.launch import environment, options, say_unused_kernels
from serve.kernels.installed import plugin_path

ANSWER_TOKENS = 64
CONTEXT = 1024


def ask(folder: Path, prompt: str, engine: EngineConfig) -> str:
    """The checkpoint's greedy answer, from the same kernels that a server would use."""
    say_unused_kernels(engine)
    check(folder, folder, engine)
    settings = {"max_model_len": CONTEXT} | options(engine)
    if "tokenizer" not in settings:
        _check_length(folder / TOKENIZER, prompt, settings["max_model_len"])
    os.environ.update(environment(engine.options))
    # vLLM's processes take over the path of this one.
    sys.path += [path for path in plugin_path() if path not in sys.path]
    log = log_file("ask")
    say(f"{folder}: loading in vLLM (log in {log})")
    with library_output_to(log):
        from vllm import LLM, SamplingParams

        with vllm_errors(f"{folder}: vLLM does not load it with these options"):
            llm = LLM(str(folder), **settings)
        greedy = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS)
        with vllm_errors("prompt: vLLM cannot answer it"):
            return _answer(llm, prompt, greedy)


def _check_length(path: Path, prompt: str, context: object) -> None:
    """Raises at once where the prompt alone, without a chat template, leaves no room for an answer:
    vLLM would say so only after it has loaded the checkpoint."""
    if not path.is_file() or not isinstance(context, int):
        return
    tokenizer = read_tokenizer(path)
    with reading(path):
        tokens = len(tokenizer.encode(prompt, add_special_tokens=False).ids)
    if tokens >= context:
        raise bad_input(
            f"prompt: has {tokens} tokens, and engine.max_model_len is {context}, answer included; "
            "shorten it, or raise engine.max_model_len"
        )


def _answer(llm: Any, prompt: str, sampling: Any) -> str:
    if llm.get_tokenizer().chat_template:
        outputs = llm.chat([{"role": "user", "content": prompt}], sampling, use_tqdm=False)
    else:
        outputs = llm.generate(prompt, sampling, use_tqdm=False)
    return str(outputs[0].outputs[0].text).strip()


@contextmanager
def vllm_errors(what: str) -> Iterator[None]:
    """Turns vLLM's own errors into one message: those about an option or a prompt into bad input,
    any other into an environment error."""
    from vllm import exceptions

    # vLLM 0.25.1 has no such class.
    refusal = getattr(exceptions, "VLLMClientError", ValueError)
    try:
        yield
    except (ValueError, refusal) as error:
        raise bad_input(f"{what}: {_reason(error)}") from error
    except Exception as error:
        raise environment_failure(f"{what}: {one_line(error)}") from error


def _reason(error: Exception) -> str:
    """What is wrong, without pydantic's headings and the input that it quotes."""
    if not isinstance(error, ValidationError):
        return one_line(error)
    fault = error.errors()[0]
    names = "".join(f"{key}: " for key in fault["loc"])
    return names + " ".join(fault["msg"].removeprefix("Value error, ").split())
