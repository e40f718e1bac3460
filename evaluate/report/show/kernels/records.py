"""The records of kernels that were timed alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from evaluate.report.published.figures import kernel_figures
from evaluate.report.show.records import Record
from evaluate.results.rows import KernelRow, Row


@dataclass(kw_only=True)
class GridRecord(Record):
    """One product beside torch's in bf16. Ratios are times over torch's: below 1 is faster."""

    gpu: str
    kernel: str
    format: str
    """With its codebooks or kernel, and the number of tokens: a panel of the heat map."""
    in_features: int
    out_features: int
    cold_us: float
    torch_us: float
    ratio: float
    warm_ratio: float | None
    limit_share: float | None
    error: float | None
    published: float | None
    """The published ratio of the same shape and codebooks."""

    @property
    def plotted_with(self) -> str:
        return self.gpu


def grid_records(rows: Sequence[Row]) -> list[GridRecord]:
    """The rows with the right result and all times."""
    published = {
        (f.tokens, f.in_features, f.out_features, f.main_centroids, f.residual_centroids): f.ratio
        for f in kernel_figures()
    }
    records = []
    for row in rows:
        if not isinstance(row, KernelRow) or row.invalid:
            continue
        settings, values = row.settings, row.values
        if values.cold is None or values.torch_cold is None or values.ratio is None:
            continue
        books = (settings.main_centroids, settings.residual_centroids)
        detail = f"{books[0]}/{books[1]}" if any(books) else f"by {row.checkpoint}"
        named = f"{settings.format} {detail}"
        shape = (settings.tokens, settings.in_features, settings.out_features)
        records.append(
            GridRecord(
                gpu=row.environment.device or "unknown device",
                kernel=row.checkpoint,
                format=f"{named}, {settings.tokens} token{'s' if settings.tokens > 1 else ''}",
                in_features=settings.in_features,
                out_features=settings.out_features,
                cold_us=values.cold.median_us,
                torch_us=values.torch_cold.median_us,
                ratio=values.ratio,
                warm_ratio=values.warm_ratio,
                limit_share=values.limit_share,
                error=values.error,
                published=published.get((*shape, *books)),
            )
        )
    return records
