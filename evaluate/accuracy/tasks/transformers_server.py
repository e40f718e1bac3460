"""A small completions server around transformers, so that the harness asks it as it asks vLLM's.

It knows the three requests that the harness sends: the log-probabilities of given tokens, those of
the likeliest next ones, and a greedy continuation. It listens on this machine only, and answers
one request at a time.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import StoppingCriteria

from conf.errors import QuantlineError
from evaluate.measure.engines import LoadRequest
from evaluate.measure.engines.transformers import TransformersEngine

TOKENS_WITH_STOP = 32  # last tokens of an answer, in which a stop text is looked for


class StopText(StoppingCriteria):  # type: ignore[misc]
    """Ends an answer as soon as it has one of the stop texts."""

    def __init__(self, tokenizer: Any, stops: list[str], prompt_tokens: int) -> None:
        self.tokenizer, self.stops, self.prompt_tokens = tokenizer, stops, prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        answer = input_ids[0, self.prompt_tokens :][-TOKENS_WITH_STOP:]
        is_over = any(stop in self.tokenizer.decode(answer) for stop in self.stops)
        return torch.tensor([is_over], device=input_ids.device)


class TransformersServer:
    """A loaded checkpoint behind /v1/completions."""

    name = "transformers"

    def __init__(self, load: LoadRequest) -> None:
        self.engine = TransformersEngine(load)
        self.loaded = self.engine.loaded
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answers(self, prompts: list[str], tokens: int) -> list[list[int]]:
        """Greedy answers to text."""
        return self.engine.answers(prompts, tokens)

    def death(self) -> QuantlineError | None:
        """It has no process of its own that could die."""
        return None

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request of the harness."""
        prompts = request["prompt"]
        prompts = [prompts] if prompts and isinstance(prompts[0], int) else prompts
        with self.lock:
            if request.get("echo"):
                choices = [self._scored(prompt) for prompt in prompts]
            elif request.get("logprobs"):
                choices = [self._likeliest(prompt, request["logprobs"]) for prompt in prompts]
            else:
                choices = [self._continued(prompt, request) for prompt in prompts]
        return {"choices": [{"index": index} | one for index, one in enumerate(choices)]}

    def _scored(self, prompt: list[int]) -> dict[str, Any]:
        """The log-probability of each token, and the highest one at its place. The harness expects
        one token more than it sent, which the model would have added."""
        scored = self.engine.score_window(prompt, 1)
        best = [{"best": scores[0]} for scores in scored.scores]
        token_logprobs = [None, *scored.chosen, 0.0]
        logprobs = {"token_logprobs": token_logprobs, "top_logprobs": [None, *best, {}]}
        return {"text": "", "logprobs": logprobs}

    def _likeliest(self, prompt: list[int], count: int) -> dict[str, Any]:
        """The log-probabilities of the likeliest tokens after the prompt."""
        scored = self.engine.score_window([*prompt, prompt[-1]], count)
        top = zip(scored.likely[-1], scored.scores[-1], strict=True)
        names = {f"token_id:{token}": score for token, score in top}
        return {"text": "", "logprobs": {"top_logprobs": [names]}}

    def _continued(self, prompt: list[int], request: dict[str, Any]) -> dict[str, Any]:
        stops = [stop for stop in request.get("stop") or [] if stop]
        tokenizer = self.engine.tokenizer
        inputs = torch.tensor([prompt], device=self.engine.device)
        output = self.engine.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=request["max_tokens"],
            stopping_criteria=[StopText(tokenizer, stops, len(prompt))],
            pad_token_id=0,
        )
        text: str = tokenizer.decode(output[0, len(prompt) :], skip_special_tokens=True)
        for stop in stops:
            text = text.partition(stop)[0]
        return {"text": text}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        complete = self.complete

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                try:
                    status, answer = 200, complete(json.loads(self.rfile.read(length)))
                except Exception as error:
                    status, answer = 400, {"error": f"{type(error).__name__}: {error}"}
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Prompts and requests are in no log."""

        return Handler
