"""The transformers engine, which uses `generate`; a well-known baseline."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    CompressedTensorsConfig,
    LogitsProcessor,
)

from conf.formats import vptq
from conf.formats.nvfp4 import is_fp4
from conf.formats.quantization_config import KEY, quantization_of, read_quantization
from conf.models import MADE_UP, MadeUpWeights, made_up_weights, read_config
from evaluate.measure.engines import Engine, Loaded, LoadRequest, Positions, Stop
from evaluate.measure.engines.random_weights import WeightSpreads, fill
from evaluate.measure.metrics import Request
from evaluate.measure.workload import Load
from evaluate.results.row_types import Startup
from quantize.models.float32 import convert_to_float32, is_slow_in_bf16
from quantize.vptq.config import linear_groups
from quantize.vptq.linear import replace_linears
from quantize.vptq.loading import exact_loading

ANY_SCALE = 0.01  # placeholder until the random weights are filled in


class StepTimes(LogitsProcessor):  # type: ignore[misc]
    """Records when the logits of each step are ready. It does not change them."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if scores.is_cuda:
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return scores


class TransformersEngine(Engine):
    """A model and its tokenizer, on the GPU if there is one."""

    def __init__(self, load: LoadRequest) -> None:
        begin = time.perf_counter()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        make_model = _random_model if load.dummy else AutoModelForCausalLM.from_pretrained
        dtype = _dtype(load)
        with exact_loading():
            self.model = make_model(
                load.folder,
                dtype=dtype,
                device_map=self.device,
                **load.engine.options,
            ).eval()
        if dtype == torch.float32 and not load.dummy:
            convert_to_float32(self.model)
        self.tokenizer = AutoTokenizer.from_pretrained(load.folder)
        self.traces = load.traces
        self.loaded = Loaded(Startup(start_s=time.perf_counter() - begin))
        parameters = list(self.model.parameters()) + list(self.model.buffers())
        held_bytes = sum(tensor.numel() * tensor.element_size() for tensor in parameters)
        self.loaded.memory.weights_gib = held_bytes / 2**30

    def run_requests(self, load: Load, stop: Stop | None = None) -> list[Request]:
        assert not load.takes_turns  # a sustained workload is refused before anything is loaded
        prompts = [planned.prompt for planned in load.requests]
        tokens = load.requests[0].output_tokens
        start = time.perf_counter()
        steps = StepTimes()
        inputs = torch.tensor(prompts, device=self.device)
        output = self.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            logits_processor=[steps],
            pad_token_id=0,
        )
        if output.is_cuda:
            torch.cuda.synchronize()
        times = [moment - start for moment in (*steps.times[:-1], time.perf_counter())]
        counted = output.shape[1] - inputs.shape[1]
        return [Request(inputs.shape[1], list(times[:counted])) for _ in prompts]

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        continuations = []
        for prompt in prompts:
            inputs = torch.tensor([prompt], device=self.device)
            output = self.model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                do_sample=False,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
            continuations.append(output[0, inputs.shape[1] :].tolist())
        return continuations

    def score_window(self, window: list[int], likely: int) -> Positions:
        tokens = torch.tensor([window], device=self.device)
        with torch.no_grad():
            scores = self.model(tokens).logits[0, :-1].float().log_softmax(-1)
        best = scores.topk(likely)
        chosen = scores.gather(1, tokens[0, 1:, None])[:, 0]
        return Positions(chosen.tolist(), best.indices.tolist(), best.values.tolist())

    def tokens_of(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenizer(text)["input_ids"]
        return tokens

    def profile(self, load: Load) -> Path:
        assert self.traces is not None
        activities = [ProfilerActivity.CPU]
        if self.device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as profiler, _steps_marked(self.model):
            self.run_requests(load)
        path = self.traces / f"transformers-{time.time_ns()}.json.gz"
        profiler.export_chrome_trace(str(path))
        return path


@contextlib.contextmanager
def _steps_marked(model: Any) -> Iterator[None]:
    """Annotates every step of a trace as prefill (the first one) or decode, in vLLM's format."""
    marks: list[Any] = []

    def before(*_: Any) -> None:
        marks.append(record_function(f"execute_context_{int(not marks)}"))
        marks[-1].__enter__()

    def after(*_: Any) -> None:
        marks[-1].__exit__(None, None, None)

    hooks = [model.register_forward_pre_hook(before), model.register_forward_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _random_model(folder: Path, dtype: Any, device_map: str, **options: Any) -> Any:
    """The model that transformers would load from a checkpoint of this config, with random weights
    in the recipe's format."""
    config = AutoConfig.from_pretrained(folder)
    quantization = getattr(config, KEY, None)
    if quantization is not None:
        del config.quantization_config
    with torch.device(device_map):
        model = AutoModelForCausalLM.from_config(
            config, dtype=config.dtype if dtype == "auto" else dtype, **options
        )
        if quantization is not None:
            _compress(model, quantization)
    made_up = made_up_weights(getattr(config, MADE_UP, None)) or MadeUpWeights()
    spreads = WeightSpreads(read_quantization(quantization, KEY), made_up.sparse)
    head = model.get_output_embeddings()
    with torch.no_grad():
        for layer in model.modules():
            tensors = dict(layer.named_parameters(recurse=False))
            fill(
                tensors,
                spreads.of(tensors, isinstance(layer, torch.nn.Linear) and layer is not head),
            )
    torch.cuda.empty_cache()  # frees the uncompressed weights
    return model


def _compress(model: Any, quantization: Mapping[str, object]) -> None:
    """Compresses the model as transformers does before it loads quantized weights."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import apply_quantization_config

    stated = read_quantization(quantization, KEY)
    if stated is not None and stated.method == vptq.METHOD:
        replace_linears(model, linear_groups(stated, model), model.dtype)
        return
    compressor = ModelCompressor.from_compression_config(CompressedTensorsConfig(**quantization))
    apply_quantization_config(model, compressor.quantization_config, run_compressed=False)
    for name, parameter in model.named_parameters():
        if name.endswith("_scale"):
            parameter.data.fill_(ANY_SCALE)
    compressor.compress_model(model)


def _dtype(load: LoadRequest) -> Any:
    """The type to load in. Random FP4 weights stay packed, and always unpack to bf16."""
    if load.engine.dtype != "auto":
        return getattr(torch, load.engine.dtype)
    quantization = quantization_of(read_config(load.folder))
    groups = quantization.groups if quantization is not None else []
    stays_packed = load.dummy and any(is_fp4(group.weights) for group in groups)
    return torch.float32 if is_slow_in_bf16() and not stays_packed else "auto"


ENGINE = TransformersEngine
