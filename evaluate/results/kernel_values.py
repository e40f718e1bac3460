"""The values and settings of a kernel row: one product of one shape, timed alone."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from evaluate.results.row_types import Amount, Count, FullName, LimitShare, Name, Part, Size

if TYPE_CHECKING:
    from typing import Optional as Maybe
else:
    from evaluate.results.row_types import Maybe

Microseconds = Annotated[float, Field(gt=0, le=1e9)]


class Times(Part):
    """Repeats of one product: microseconds of a call."""

    median_us: Microseconds
    low_us: Microseconds
    """Lower end of the 95 % interval of the mean."""
    high_us: Microseconds
    repeats: Size
    """Replays of a CUDA graph; each holds many calls."""


class KernelSettings(Part):
    """What was multiplied."""

    grid: FullName
    format: FullName
    tokens: Size
    in_features: Size
    out_features: Size
    layer: Name = ""
    """The layer of the model, where the shape is that of one."""
    main_centroids: Count = 0
    """0 for formats without codebooks."""
    residual_centroids: Count = 0
    vector: Count = 0


class KernelValues(Part):
    """How long a product takes, beside torch's in bf16 and the limit of the memory."""

    cold: Maybe[Times] = None
    """Each call reads its own copy of the weights, so that none is in the L2 cache."""
    warm: Maybe[Times] = None
    """All calls read the same weights."""
    torch_cold: Maybe[Times] = None
    """torch's product of bf16 weights of the same shape."""
    torch_warm: Maybe[Times] = None
    error: Maybe[Amount] = None
    """Largest relative error of a token's outputs against float64."""
    weight_bytes: Maybe[Count] = None
    """What a call reads, codebooks included."""
    limit_us: Maybe[Microseconds] = None
    """Reading these bytes and the activations at the measured bandwidth."""
    limit_share: Maybe[LimitShare] = None
    """The limit over the time with a cold cache."""
    options: Name = ""
    """The launch options of the fastest candidate."""

    @property
    def ratio(self) -> float | None:
        """Time over torch's with a cold cache: below 1 is faster."""
        return _ratio(self.cold, self.torch_cold)

    @property
    def warm_ratio(self) -> float | None:
        return _ratio(self.warm, self.torch_warm)


def _ratio(times: Times | None, torch_times: Times | None) -> float | None:
    if times is None or torch_times is None:
        return None
    return times.median_us / torch_times.median_us
