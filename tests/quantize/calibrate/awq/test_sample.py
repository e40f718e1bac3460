"""The sequences that AWQ's search runs through attention and MLPs."""

from typing import Any

import pytest
import torch

from quantize.calibrate.awq.sample import Sample
from quantize.steps.awq import SEARCH_SEQUENCES


def arguments(first: int, sequences: int, **others: Any) -> dict[str, Any]:
    """A call in which every value of sequence n is n."""
    numbers = torch.arange(first, first + sequences).float()
    hidden = numbers[:, None, None].expand(-1, 5, 2)
    return {
        "hidden_states": hidden,
        "position_embeddings": (torch.zeros(1, 5, 2), hidden.clone()),
        "attention_mask": hidden.unsqueeze(1).clone(),
        "position_ids": torch.zeros(1, 5),
        "past_key_values": None,
        "use_cache": False,
    } | others


def sampled(size: int, total: int, **others: Any) -> tuple[Sample, list[int]]:
    sample = Sample(SEARCH_SEQUENCES)
    for first in range(0, total, size):
        sample.add(arguments(first, min(size, total - first), **others))
        assert sample.sequences <= max(SEARCH_SEQUENCES, size)
    numbers = [int(n) for part in sample.batches() for n in part["hidden_states"][:, 0, 0]]
    return sample, numbers


@pytest.mark.parametrize("size", [1, 3, 8, 40])
@pytest.mark.parametrize("total", [7, 16, 17, 40, 256])
def test_the_sample_is_spread_evenly(size: int, total: int) -> None:
    sample, numbers = sampled(size, total)
    assert sample.sequences == len(numbers) == min(total, SEARCH_SEQUENCES)
    gaps = [after - before for before, after in zip(numbers, [*numbers[1:], total], strict=True)]
    assert min(gaps) > 0
    assert max(gaps) <= 3 * total / len(numbers)


def test_every_argument_belongs_to_its_sequence() -> None:
    sample, _ = sampled(8, 40)
    for part in sample.batches():
        numbers = part["hidden_states"][:, 0, 0]
        assert part["position_embeddings"][0].shape in ((1, 5, 2), (len(numbers), 5, 2))
        assert torch.equal(part["position_embeddings"][1][:, 0, 0], numbers)
        assert torch.equal(part["attention_mask"][:, 0, 0, 0], numbers)
        assert part["position_ids"].shape in ((1, 5), (len(numbers), 5))
        assert (part["past_key_values"], part["use_cache"]) == (None, False)


@pytest.mark.parametrize(
    "others",
    [
        {"cache_position": torch.arange(8)},  # as long as the batch by chance
        {"position_embeddings": (torch.zeros(3, 8, 5, 2),)},  # the batch comes second
        {"attention_mask": torch.zeros(8, 5)},
        {"state": object()},
    ],
)
def test_a_batch_is_taken_whole_where_its_sequences_cannot_be_told(others: dict[str, Any]) -> None:
    sample, numbers = sampled(8, 80, **others)
    assert [len(part["hidden_states"]) for part in sample.batches()] == [8, 8]
    assert numbers[0] == 0


def test_a_batch_that_is_too_large_stays_alone() -> None:
    sample, numbers = sampled(24, 72, state=object())
    assert numbers == list(range(24))
    sample.clear()
    assert sample.sequences == 0
