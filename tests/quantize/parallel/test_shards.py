"""One process that takes shard after shard gives the same bits as a process for each shard."""

from collections.abc import Iterator

import pytest
import torch
from llmcompressor.core import active_session, reset_session

from conf.errors import QuantlineError
from quantize.calibrate.awq.mappings import InputSizes
from quantize.calibrate.solver.products import SharedProducts
from quantize.parallel.ranks import Ranks
from quantize.parallel.shards import Batch, of_all_rows, sharded, split
from tests.quantize.parallel.together import in_two_ranks

LENGTHS = (5, 3, 3, 2, 7, 4)


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    reset_session()
    yield
    reset_session()


def batches() -> list[Batch]:
    return [{"input_ids": torch.full((1, length), number)} for number, length in enumerate(LENGTHS)]


def numbers(shard: list[Batch]) -> list[int]:
    return [int(batch["input_ids"][0, 0]) for batch in shard]


def test_shards_have_about_the_same_number_of_tokens() -> None:
    assert [numbers(shard) for shard in split(batches(), 2)] == [[1, 3, 4], [0, 2, 5]]
    assert [numbers(shard) for shard in split(batches(), 1)] == [[0, 1, 2, 3, 4, 5]]


def test_more_shards_than_batches_are_refused() -> None:
    with pytest.raises(QuantlineError, match="shards=7: the calibration text has only 6 batches"):
        split(batches(), 7)


def inputs_of(batch: Batch) -> torch.Tensor:
    generator = torch.Generator().manual_seed(int(batch["input_ids"][0, 0]))
    return torch.randn(batch["input_ids"].numel(), 8, generator=generator) * 1e3


def statistics(shards: int) -> tuple[torch.Tensor, list[object]]:
    """X'X and the sizes of inputs, from this process's batches."""
    module = torch.nn.Linear(8, 8)
    products, sizes = SharedProducts(), InputSizes()
    with sharded(batches(), shards) as own:
        for number, batch in enumerate(own):
            active_session().state.current_batch_idx = number
            products.add(module, inputs_of(batch))
            sizes.add("q", module, (inputs_of(batch)[None],))
        ((_, matrix),) = list(products.take())
        total, count = sizes.take()["q"]
    return matrix, [total, count]


def test_two_ranks_sum_as_one_process_with_two_shards() -> None:
    matrix, (sizes, count) = statistics(shards=2)
    whole, (whole_sizes, _) = statistics(shards=1)
    torch.testing.assert_close(matrix, whole)
    torch.testing.assert_close(sizes, whole_sizes)
    assert count == sum(LENGTHS)
    for of_rank, (sizes_of_rank, count_of_rank) in in_two_ranks(lambda _: statistics(shards=2)):
        assert torch.equal(of_rank, matrix)
        assert torch.equal(sizes_of_rank, sizes)
        assert count_of_rank == count


def test_ranks_that_saw_different_modules_are_not_summed() -> None:
    def work(ranks: Ranks) -> None:
        products = SharedProducts()
        products.add(torch.nn.Linear(8, 8), torch.ones(3, 8 + ranks.rank))
        list(products.take())

    with pytest.raises(RuntimeError, match="calls of different modules"):
        in_two_ranks(work)


@pytest.mark.parametrize("rows", [1, 2, 7, 8])
def test_rows_are_computed_in_parts_and_put_together(rows: int) -> None:
    values = torch.arange(rows * 3.0).view(rows, 3)
    seen: list[tuple[int, int]] = []

    def solved(part: slice) -> torch.Tensor:
        seen.append((part.start, part.stop))
        return values[part]

    def work(_: Ranks) -> torch.Tensor:
        with sharded(batches(), 2):
            return of_all_rows(rows, solved)

    for whole in in_two_ranks(work):
        assert torch.equal(whole, values)
    assert len(seen) == 2
    assert max(stop - start for start, stop in seen) == -(-rows // 2)
    with sharded(batches(), 2):
        assert torch.equal(of_all_rows(rows, solved), values)
    assert set(seen[2:]) == set(seen[:2])
