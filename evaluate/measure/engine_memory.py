"""The memory that one engine needs on each of its GPUs, from its options and the checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from conf.errors import environment_failure
from conf.files.json_files import JsonObject
from conf.formats.quantization_config import quantization_of
from conf.hardware import gpu_memory_gib
from conf.models import kv_values_per_token, read_config
from conf.schema.load import KV_CACHE_SIZE, EngineConfig, EngineOptions, gpus_of
from evaluate.measure.side_by_side import WORKING_GIB
from serve.engine.sparsity import is_sparse24
from serve.kernels.memory import extra_bytes
from serve.kernels.settings import KERNELS, Settings
from serve.kernels.vptq.memory import wider_numbers_bytes
from serve.tensors import Tensor, tensors

REPLICAS = "data_parallel_size"
DTYPE_BYTES = {"float32": 4, "float": 4}


@dataclass(frozen=True)
class EngineMemory:
    """Sizes of one engine, computed before it is started."""

    engine: EngineConfig
    recorded: EngineOptions
    """Its options as a row records them, with this machine's defaults."""

    @property
    def width(self) -> int:
        """Bytes of a number that is not quantized."""
        return DTYPE_BYTES.get(str(self.recorded.get("dtype", "auto")), 2)

    @property
    def shards(self) -> int:
        """GPUs that share the weights of one engine."""
        return gpus_of({n: v for n, v in self.engine.options.items() if n != REPLICAS})

    def cache_bytes(self, config: JsonObject, tokens: int) -> int:
        """Bytes on each GPU of a KV cache with so many tokens. Computed at full width for every
        checkpoint, so that all have the same options."""
        return -(-tokens * kv_values_per_token(config) * self.width // self.shards)

    def held_gib(
        self,
        config: JsonObject,
        stored: Mapping[str, Tensor],
        pruned: bool,
        options: EngineOptions,
    ) -> float:
        """Approximate memory that it needs on each GPU, when it is started with these options."""
        quantization = quantization_of(config)
        weight_bytes = self._weight_bytes(stored) + wider_numbers_bytes(stored, quantization)
        if KERNELS in self.recorded:
            settings = Settings.of(self.engine.kernels)
            weight_bytes += extra_bytes(stored, quantization, settings, pruned)
        held_bytes = weight_bytes / self.shards
        reserved = options.get(KV_CACHE_SIZE, 0)
        held_bytes += reserved if isinstance(reserved, int) else 0
        return held_bytes / 2**30 + WORKING_GIB

    def check_host(self, folder: Path) -> None:
        """Raises where the weights alone do not fit into the memory of a machine without a GPU."""
        if gpu_memory_gib():
            return
        weights = self._weight_bytes(tensors(folder))
        free = psutil.virtual_memory().available
        if weights > free:
            raise environment_failure(
                f"it needs {weights / 2**30:.1f} GiB for its weights, {free / 2**30:.1f} GiB of "
                "memory are free"
            )

    def _weight_bytes(self, stored: Mapping[str, Tensor]) -> float:
        return float(sum(tensor.held_bytes(self.width) for tensor in stored.values()))

    def held_by(self, folder: Path, options: EngineOptions) -> float:
        """The same for the checkpoint in a folder."""
        pruned = is_sparse24(folder)
        return self.held_gib(read_config(folder), tensors(folder), pruned, options)
