"""Answers one prompt with a checkpoint in vLLM."""

import os
import sys
from pathlib import Path

from conf.cache import log_file
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
    os.environ.update(environment(engine.options))
    # vLLM's processes take over the path of this one.
    sys.path += [path for path in plugin_path() if path not in sys.path]
    log = log_file("ask")
    say(f"{folder}: loading in vLLM (log in {log})")
    with library_output_to(log):
        from vllm import LLM, SamplingParams

        llm = LLM(str(folder), **({"max_model_len": CONTEXT} | options(engine)))
        greedy = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS)
        if llm.get_tokenizer().chat_template:
            outputs = llm.chat([{"role": "user", "content": prompt}], greedy, use_tqdm=False)
        else:
            outputs = llm.generate(prompt, greedy, use_tqdm=False)
        return str(outputs[0].outputs[0].text).strip()
