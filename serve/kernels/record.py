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
ALL = "all"
"""Stands for every product of ours among those that were refused."""


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
    """0, as its columns, where a layer was refused before its shape was known."""
    columns: int
    ranges: tuple[TokenRange, ...] = ()
    """Empty where vLLM's own kernel runs for all numbers of tokens, and its name is not known."""
    refused: dict[str, str] = field(default_factory=dict)
    """Products of ours that were not used, and why; ALL where the layer was left to vLLM."""
    extra_bytes: int = 0
    """Memory of further layouts of the weights, for each of these layers."""
    layer: str = ""
    """The layer's name, where it differs from the others of its kind; else empty: all of them."""

    @property
    def shape(self) -> str:
        return f"{self.kind} {self.rows}x{self.columns}"

    @property
    def is_left(self) -> bool:
        """Whether it was left to vLLM's own kernel."""
        return ALL in self.refused

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
        of = self.shape if self.rows else self.kind
        text = f"{self.layer or 'layers'} ({of}): {', '.join(products) or 'vLLM'}"
        extra = f"; {self.extra_bytes / 2**20:.1f} MiB more each" if self.extra_bytes else ""
        reasons = [
            f"; left to vLLM: {reason}" if product == ALL else f"; not {product}: {reason}"
            for product, reason in self.refused.items()
        ]
        return text + extra + "".join(reasons)


_READER = TypeAdapter(LayerKernels)
_FIRST: dict[str, LayerKernels] = {}
"""The first layer of each shape, without its name."""
_LOGGED: set[str] = set()


def note(kernels: LayerKernels, layer: str = "") -> None:
    """Logs what a layer runs, unless an equal one was logged. Also makes it part of the key of the
    engine's compiled graphs: call it for each layer, in the order of loading."""
    # A layer that is left has another graph than one whose plan is vLLM's own product alone.
    planned = () if kernels.is_left else kernels.ranges
    add_to_graph_key(f"{layer} {kernels.shape} {planned}")
    first = _FIRST.setdefault(kernels.shape, kernels)
    _log_once(kernels if kernels == first else replace(kernels, layer=layer))


def note_refusal(kernels: LayerKernels, level: int = logging.INFO) -> None:
    """Logs layers that our classes refused before they were loaded, unless equal ones were logged.
    They are not part of the key of graphs: a key without a layer stands for vLLM's own kernel. Nor
    are they the first of their shape: a class may take other layers of that shape, and these are
    logged together, too."""
    _log_once(kernels, level)


def _log_once(kernels: LayerKernels, level: int = logging.INFO) -> None:
    content = json.dumps(asdict(kernels), sort_keys=True)
    if content in _LOGGED:
        return
    _LOGGED.add(content)
    logger.log(level, "quantline: %s", kernels)
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
