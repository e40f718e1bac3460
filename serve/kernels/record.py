"""What each layer runs, as lines of vLLM's log: one for people, one that an evaluation reads.

The engine may be another process, or on another machine: its log is the only channel that always
exists. Layers of one kind usually run the same. The first of a kind is logged for all of them;
a layer that runs something else is logged by its name.
"""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from serve.kernels.settings import add_to_graph_key

logger = logging.getLogger("vllm.quantline")
MARK = "quantline-kernels:"
LINE = re.compile(rf"{MARK} (\{{.*\}})")


@dataclass(frozen=True)
class TokenRange:
    """The product for a range of tokens, from the end of the range before."""

    up_to: int | None
    """The most tokens; None for any number."""
    product: str


@dataclass(frozen=True)
class LayerKernels:
    """What layers of one kind and shape run."""

    kind: str
    """The stored format, such as int8, fp8, w4a16; with `sparse` where weights are 2:4."""
    rows: int
    columns: int
    ranges: tuple[TokenRange, ...] = ()
    """Empty where vLLM's own kernel runs for all numbers of tokens."""
    refused: dict[str, str] = field(default_factory=dict)
    """Products of ours that were not used, and why."""
    extra_bytes: int = 0
    """Memory of further layouts of the weights, for each of these layers."""
    layer: str = ""
    """The layer's name, where it differs from the others of its kind; else empty: all of them."""

    @property
    def shape(self) -> str:
        return f"{self.kind} {self.rows}x{self.columns}"

    @property
    def content(self) -> dict[str, Any]:
        """As a row stores it."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return content

    def __str__(self) -> str:
        products = [
            f"{part.product} beyond" if part.up_to is None else f"{part.product} to {part.up_to}"
            for part in self.ranges
        ]
        if len(self.ranges) == 1 and self.ranges[0].up_to is None:
            products = [self.ranges[0].product]
        text = f"{self.layer or 'layers'} ({self.shape}): {', '.join(products) or 'vLLM'}"
        extra = f"; {self.extra_bytes / 2**20:.1f} MiB more each" if self.extra_bytes else ""
        reasons = [f"; not {product}: {reason}" for product, reason in self.refused.items()]
        return text + extra + "".join(reasons)


_READER = TypeAdapter(LayerKernels)
_FIRST: dict[str, LayerKernels] = {}
"""The first layer of each shape, without its name."""
_LOGGED: set[str] = set()


def note(kernels: LayerKernels, layer: str = "") -> None:
    """Logs what a layer runs, unless an equal one was logged. Also makes it part of the key of the
    engine's compiled graphs: call it for each layer, in the order of loading."""
    add_to_graph_key(f"{layer} {kernels.shape} {kernels.ranges}")
    content = json.dumps(asdict(kernels), sort_keys=True)
    first = _FIRST.setdefault(kernels.shape, kernels)
    if kernels != first:
        kernels = replace(kernels, layer=layer)
        content = json.dumps(asdict(kernels), sort_keys=True)
    if content in _LOGGED:
        return
    _LOGGED.add(content)
    logger.info("quantline: %s", kernels)
    logger.info("%s %s", MARK, content)


def forget() -> None:
    """Forgets the layers of an engine, before another one is loaded in this process."""
    _FIRST.clear()
    _LOGGED.clear()


def read_log(text: str) -> list[LayerKernels]:
    """What the layers of an engine run, in the order of its log; each once."""
    facts: dict[str, LayerKernels] = {}
    for match in LINE.finditer(text):
        for kernels in _readable(match[1]):
            facts.setdefault(match[1], kernels)
    return list(facts.values())


def _readable(content: str) -> Iterator[LayerKernels]:
    try:
        yield _READER.validate_json(content)
    except ValidationError as error:
        logger.debug("%s %s: %s", MARK, content, error)
