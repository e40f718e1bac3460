"""The tensors of a model folder, without torch and without reading weights."""

from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter

from conf.files.json_files import read_object, validated
from conf.files.stored_tensor import Tensor
from conf.files.tensor_files import INDEX, tensor_files
from conf.models import SHAPES

__all__ = ["INDEX", "Tensor", "tensors"]

_Shape = list[Annotated[int, Field(ge=0)]]
_SHAPES = TypeAdapter(dict[str, tuple[str, _Shape]], config=ConfigDict(strict=False))


def tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder; raises, with its name, for a file that is truncated or missing."""
    path = folder / SHAPES
    if path.is_file():
        shapes = validated(_SHAPES, read_object(path), str(path))
        return {name: Tensor(dtype, tuple(shape)) for name, (dtype, shape) in shapes.items()}
    return tensor_files(folder).tensors
