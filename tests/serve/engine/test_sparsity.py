"""Whether a checkpoint's weights are 2:4: by the manifest, else by some rows of some weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from conf.files import tensor_rows
from conf.files.stored_tensor import Tensor
from conf.files.tensor_files import tensor_files
from conf.files.tensor_rows import middle_rows
from serve.engine import sparsity
from serve.engine.sparsity import ROWS, is_sparse24
from serve.kernels.products.sparse.lt import is_sparse24 as engine_finds_it

SHAPE = (3 * ROWS, 256)
FP8 = torch.float8_e4m3fn
UP, DOWN = "model.layers.{}.mlp.up_proj.weight", "model.layers.{}.mlp.down_proj.weight"


def dense(dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-127, 128, SHAPE).to(dtype)


def pruned(dtype: torch.dtype) -> torch.Tensor:
    """Two of four are zero; in FP8, some of them -0.0, as scaling and rounding leave them."""
    keep = torch.rand(SHAPE[0], SHAPE[1] // 4, 4).argsort(-1) < 2
    values = dense(torch.int8).float().clamp(min=-100) * keep.view(SHAPE)
    return (values if dtype == torch.int8 else values * -1.0).to(dtype)


def folder_of(path: Path, weights: dict[str, torch.Tensor]) -> Path:
    save_file({"model.norm.weight": torch.ones(5), **weights}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("dtype", [torch.int8, FP8], ids=str)
@pytest.mark.parametrize(("make", "expected"), [(dense, False), (pruned, True)])
def test_zeros_are_found_where_the_engine_finds_them(
    dtype: torch.dtype, make: Callable[[torch.dtype], torch.Tensor], expected: bool, tmp_path: Path
) -> None:
    weights = {name.format(layer): make(dtype) for name in (UP, DOWN) for layer in range(3)}
    assert all(engine_finds_it(weight) == expected for weight in weights.values())
    assert is_sparse24(folder_of(tmp_path, weights)) == expected


def test_one_kind_of_layer_is_enough_and_the_ends_are_not_asked(tmp_path: Path) -> None:
    weights = {UP.format(layer): dense(torch.int8) for layer in range(8)}
    weights |= {DOWN.format(layer): pruned(torch.int8) for layer in range(1, 7)}
    weights |= {DOWN.format(layer): dense(torch.int8) for layer in (0, 7)}
    assert is_sparse24(folder_of(tmp_path, weights))


@pytest.mark.parametrize(
    "weights",
    [
        {"model.layers.0.mlp.experts.0.up_proj.weight": pruned(torch.int8)},
        {UP.format(0): pruned(torch.int8).bfloat16()},
        {UP.format(0): pruned(torch.int8)[:, :254].contiguous()},
        {"model.layers.0.mlp.up_proj.weight_packed": torch.zeros(SHAPE, dtype=torch.int32)},
    ],
    ids=["experts", "bf16", "no whole fours", "packed"],
)
def test_weights_that_no_sparse_kernel_takes_do_not_count(
    weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    assert not is_sparse24(folder_of(tmp_path, weights))


@pytest.mark.parametrize("claim", [True, False])
def test_a_manifest_is_believed(
    claim: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparsity, "is_pruned", lambda _: claim)
    assert is_sparse24(tmp_path) == claim


def test_a_folder_without_weights_has_none_that_are_pruned(tmp_path: Path) -> None:
    assert not is_sparse24(tmp_path)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_rows_from_the_middle(rows: int, tmp_path: Path) -> None:
    tensor = torch.arange(rows * 6).to(torch.int8).view(rows, 6)
    folder = folder_of(tmp_path, {"a.weight": tensor, "b.weight": dense(FP8)})
    stored = tensor_files(folder)
    found = middle_rows(stored.owners["a.weight"], "a.weight", stored.tensors["a.weight"], 4)
    first = max(0, rows - 4) // 2
    assert found == bytes(tensor[first : first + 4].flatten().tolist())


def test_little_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows of a few tensors, however large the file is."""
    sizes = []

    def counted(path: Path, name: str, tensor: Tensor, most: int) -> bytes:
        sizes.append(len(numbers := tensor_rows.middle_rows(path, name, tensor, most)))
        return numbers

    monkeypatch.setattr(sparsity, "middle_rows", counted)
    weights = {UP.format(layer): dense(torch.int8) for layer in range(40)}
    assert not is_sparse24(folder_of(tmp_path, weights))
    assert sizes == [ROWS * SHAPE[1]] * len(sparsity.PLACES)
