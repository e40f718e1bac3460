"""Weighted k-means on many short vectors.

Distances are computed in chunks, by one product each. Sums are in float64 and the random numbers
have a fixed seed, so that a run gives the same codebook again.
"""

import torch

ELEMENTS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 27}  # distances that are held at the same time
SEED = 0


def nearest(vectors: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """The number of the nearest entry [entries, length] for each vector [vectors, length]."""
    halves = entries.square().sum(dim=1) / 2
    columns = entries.t()
    size = max(1, ELEMENTS_AT_ONCE[vectors.device.type] // len(entries))
    # |x - c|^2 is |x|^2 + 2 (|c|^2 / 2 - x c), and |x|^2 is the same for every entry.
    return torch.cat(
        [
            torch.addmm(halves, chunk, columns, alpha=-1).argmin(dim=1)
            for chunk in vectors.split(size)
        ]
    )


def kmeans(
    vectors: torch.Tensor, importance: torch.Tensor, count: int, rounds: int
) -> torch.Tensor:
    """A codebook of `count` entries for vectors [vectors, length]: those with a large importance
    [vectors] are met more closely."""
    generator = torch.Generator(device=vectors.device).manual_seed(SEED)
    entries = _first_entries(vectors, importance, count, generator)
    for _ in range(rounds):
        numbers = nearest(vectors, entries)
        entries = _means(vectors, importance, numbers, entries)
    return entries


def _first_entries(
    vectors: torch.Tensor, importance: torch.Tensor, count: int, generator: torch.Generator
) -> torch.Tensor:
    """Vectors chosen at random, important ones more often. Where there are fewer vectors than
    entries, the rest are zero."""
    # The largest of log(u) / weight are a sample without replacement.
    keys = torch.rand(len(vectors), generator=generator, device=vectors.device).log()
    keys = keys / importance.clamp_min(importance.max() * 1e-12).float()
    chosen = keys.topk(min(count, len(vectors))).indices
    return torch.nn.functional.pad(vectors[chosen], (0, 0, 0, count - len(chosen)))


def _means(
    vectors: torch.Tensor, importance: torch.Tensor, numbers: torch.Tensor, entries: torch.Tensor
) -> torch.Tensor:
    """The weighted mean of the vectors of each entry. An entry without vectors takes the place of a
    vector that is met worst."""
    weights = importance.double()
    totals = torch.zeros(len(entries), dtype=torch.float64, device=vectors.device)
    totals.index_add_(0, numbers, weights)
    sums = torch.zeros_like(entries, dtype=torch.float64)
    sums.index_add_(0, numbers, vectors.double() * weights[:, None])
    means = torch.where(totals[:, None] > 0, sums / totals[:, None].clamp_min(1e-300), entries)
    means = means.to(entries.dtype)
    unused = (totals == 0).nonzero()[:, 0]
    if len(unused):
        harm = (vectors - means[numbers]).square().sum(dim=1) * importance
        worst = harm.topk(min(len(unused), len(vectors))).indices
        means[unused[: len(worst)]] = vectors[worst]
    return means
