"""The rates of this machine: measured once and cached, or from the datasheet."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from conf.cache import rates_file
from conf.errors import QuantlineError
from conf.files.json_files import read_object, validated
from conf.hardware import cpu_name, gpu_cards, gpu_names
from conf.process.program import Program
from conf.process.running import call
from conf.schema.load import PARALLEL, EngineOptions, GpuConfig
from conf.terminal import say
from evaluate.measure.rates.links import Links
from evaluate.measure.roofline import Rates

GIGA, TERA = 1e9, 1e12
_RATES = TypeAdapter(Rates)


@dataclass(frozen=True)
class RatesRequest:
    """Measure this machine."""

    path: str
    """The file for the rates."""


@dataclass(frozen=True)
class RatesWritten:
    """The rates are in the requested file."""

    path: str


MEASURE_RATES = Program("evaluate.measure.rates.measuring", RatesRequest, (RatesWritten,))


def rates(gpu: GpuConfig, count: int = 1) -> Rates | None:
    """The measured rates of that many GPUs of this machine. If measuring fails, the datasheet's;
    None without a datasheet."""
    single = _single_gpu_rates(gpu)
    if single is None or count == 1:
        return single
    together = {kind: rate * count for kind, rate in single.products.items()}
    return Rates(single.bandwidth * count, together, single.source)


def with_links(known: Rates | None, gpu: GpuConfig, options: EngineOptions) -> Rates | None:
    """The rates with the link between the cards of one replica."""
    if known is None:
        return None
    tensor, pipeline, _ = (int(options.get(name, 1)) for name in PARALLEL)
    speed = gpu.link_gb_s * GIGA if gpu.link_gb_s else None
    return replace(known, links=Links(tensor, pipeline, speed))


def _single_gpu_rates(gpu: GpuConfig) -> Rates | None:
    name = (gpu_names() or [f"{cpu_name()}, {os.cpu_count()} cores"])[0]
    path = rates_file(name, gpu_cards())
    if not path.is_file():
        say(f"{name}: measuring bandwidth and matrix rates, once")
        try:
            call(MEASURE_RATES, RatesRequest(str(path)))
        except QuantlineError as error:
            say(f"{name}: its rates could not be measured ({error})")
            return _datasheet(gpu)
    return _read_rates(path)


def _read_rates(path: Path) -> Rates:
    measured: Rates = validated(_RATES, read_object(path), str(path))
    return measured


def _datasheet(gpu: GpuConfig) -> Rates | None:
    if not gpu.bandwidth_gb_s or not gpu.bf16_tflops:
        return None
    products = {"bf16": gpu.bf16_tflops, "fp8": gpu.fp8_tflops, "int8": gpu.int8_tops}
    known_products = {kind: rate * TERA for kind, rate in products.items() if rate}
    return Rates(gpu.bandwidth_gb_s * GIGA, known_products, "datasheet")
