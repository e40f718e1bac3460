"""X'X of a layer's inputs: GPTQ's Hessian and AWQ's Gram matrix, in float32.

The matrix is symmetric, so only blocks on and above the diagonal are computed. 16-bit inputs are
multiplied as they are and summed in float32: on an H200 this is five times as fast as TF32, and
its error against float64 is no larger.
"""

import contextlib
from collections.abc import Iterator

import torch

from quantize.parallel.ranks import RANKS
from quantize.parallel.shards import SHARDS

STRIP_ROWS = 1024  # rows of one strip on a GPU; the fastest of 512, 1,024, 2,048 and 4,096
CPU_STRIPS = 4
FLOAT_16 = (torch.bfloat16, torch.float16)


class Products:
    """Adds up X'X over batches. The upper triangle is held as strips: strip i holds the rows of
    block i, from the diagonal on."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self._rows = STRIP_ROWS if device.type == "cuda" else -(-width // CPU_STRIPS)
        self._strips = [
            torch.zeros(min(self._rows, width - start), width - start, device=device)
            for start in range(0, width, self._rows)
        ]

    def _placed(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Each strip with its first row and the row behind its last."""
        for number, strip in enumerate(self._strips):
            start = number * self._rows
            yield start, start + len(strip), strip

    def add(self, inputs: torch.Tensor) -> None:
        """Adds the product of one batch of inputs."""
        tokens = inputs.reshape(-1, self.width)
        if not tokens.is_cuda or tokens.dtype not in FLOAT_16:
            tokens = tokens.float()
        for start, stop, strip in self._placed():
            left, right = tokens[:, start:stop].t(), tokens[:, start:]
            if tokens.dtype in FLOAT_16:
                torch.addmm(strip, left, right, out_dtype=torch.float32, out=strip)
            else:
                strip.addmm_(left, right)

    def add_products(self, others: "Products") -> None:
        """Adds the sums of other inputs."""
        for strip, other in zip(self._strips, others._strips, strict=True):
            strip += other

    def add_other_ranks(self) -> None:
        """Adds the sums of all ranks, in the order of the ranks."""
        self._strips = [RANKS.get().sum(strip) for strip in self._strips]

    def matrix(self) -> torch.Tensor:
        """The whole symmetric matrix."""
        whole = torch.empty(self.width, self.width, device=self._strips[0].device)
        for start, stop, strip in self._placed():
            square = strip[:, : stop - start]
            whole[start:stop, start:stop] = square.triu() + square.triu(1).t()
            whole[start:stop, stop:] = strip[:, stop - start :]
            whole[stop:, start:stop] = strip[:, stop - start :].t()
        return whole


@contextlib.contextmanager
def tf32_products() -> Iterator[None]:
    """Lets a GPU multiply float32 matrices in TF32: exact enough for a sum of squared errors."""
    previous = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = previous


def output_energy(weights: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """The sum of squares of W X over all inputs: tr(W X'X W')."""
    with tf32_products():
        return (weights @ products).mul_(weights).sum().clamp_min(0)


Modules = tuple[torch.nn.Module, ...]


class ShardedProducts:
    """Products that are summed for each shard of the text alone, and then in the shards' order."""

    def __init__(self, width: int, device: torch.device) -> None:
        self._finished: Products | None = None
        """The sum of all shards before the current one."""
        self._current = Products(width, device)
        self._shard: int | None = None
        self.width = width

    def add(self, inputs: torch.Tensor, shard: int) -> None:
        """Adds the product of one batch of a shard."""
        if self._shard is not None and shard != self._shard:
            self._finish_shard()
            self._current = Products(self.width, inputs.device)
        self._shard = shard
        self._current.add(inputs)

    def total(self) -> Products:
        """The sum over all shards, of all ranks."""
        self._finish_shard()
        assert self._finished is not None
        if RANKS.get().are_several:
            self._finished.add_other_ranks()
        return self._finished

    def _finish_shard(self) -> None:
        if self._finished is None:
            self._finished = self._current
        else:
            self._finished.add_products(self._current)


class SharedProducts:
    """The products of many modules. Modules that are called with the same tensor, such as q, k and
    v, share one: it is computed when the next tensor comes."""

    def __init__(self) -> None:
        self._products: dict[Modules, ShardedProducts] = {}
        self._inputs: torch.Tensor | None = None
        self._modules: Modules = ()
        self._shard = 0

    def add(self, module: torch.nn.Module, inputs: torch.Tensor) -> None:
        """Adds a module's input in one batch."""
        if inputs is not self._inputs:
            self.flush()
            self._inputs, self._shard = inputs, SHARDS.get().current()
        self._modules = (*self._modules, module)

    def flush(self) -> None:
        """Computes the product of the last input."""
        if self._inputs is not None:
            if self._modules not in self._products:
                self._products[self._modules] = ShardedProducts(
                    self._inputs.shape[-1], self._inputs.device
                )
            self._products[self._modules].add(self._inputs, self._shard)
        self._inputs, self._modules = None, ()

    def groups(self) -> list[Modules]:
        """The modules, those that have had the same inputs in every batch together."""
        self.flush()
        callers: dict[torch.nn.Module, list[Modules]] = {}
        for modules in self._products:
            for module in modules:
                callers.setdefault(module, []).append(modules)
        groups: dict[tuple[Modules, ...], Modules] = {}
        for module, keys in callers.items():
            groups[tuple(keys)] = (*groups.get(tuple(keys), ()), module)
        return list(groups.values())

    def take(self) -> Iterator[tuple[Modules, torch.Tensor]]:
        """Each group with its matrix. What no later group needs is given up on the way."""
        groups = self.groups()
        self._check_ranks()
        totals = {modules: products.total() for modules, products in self._products.items()}
        self._products.clear()
        for number, group in enumerate(groups):
            keys = [modules for modules in totals if group[0] in modules]
            later = {module for other in groups[number + 1 :] for module in other}
            total = totals[keys[0]].matrix()
            for modules in keys[1:]:
                total += totals[modules].matrix()
            for modules in keys:
                if not later.intersection(modules):
                    del totals[modules]
            yield group, total

    def _check_ranks(self) -> None:
        """Sums of different modules must not be added."""
        ranks = RANKS.get()
        if ranks.are_several:
            layouts = ranks.objects(
                [(len(key), each.width) for key, each in self._products.items()]
            )
            if any(layout != layouts[0] for layout in layouts):
                raise RuntimeError("the processes have seen calls of different modules")
