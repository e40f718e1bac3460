"""The columns of the table of kernels that were timed alone."""

from evaluate.report.show.kernels.records import GridRecord
from evaluate.report.show.tables import Column


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


GRID: tuple[Column[GridRecord], ...] = (
    Column("product", "format", lambda r: r.format, is_text=True),
    Column("in_features", "in_features", lambda r: str(r.in_features)),
    Column("out_features", "out_features", lambda r: str(r.out_features)),
    Column("µs", "cold_us", lambda r: f"{r.cold_us:.2f}"),
    Column("torch bf16 (µs)", "torch_us", lambda r: f"{r.torch_us:.2f}"),
    Column("ratio", "ratio", lambda r: f"{r.ratio:.2f}"),
    Column("warm ratio", "warm_ratio", lambda r: _number(r.warm_ratio, ".2f")),
    Column("of the limit", "limit_share", lambda r: _number(r.limit_share, ".0%")),
    Column("error", "error", lambda r: _number(r.error, ".4f")),
    Column("published ratio", "published", lambda r: _number(r.published, ".2f")),
)
