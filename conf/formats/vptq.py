"""VPTQ: vectors of weights as numbers of codebook entries (2 to 4 bits a weight).

The layout is that of microsoft/VPTQ, whose community publishes checkpoints. A layer of `rows`
outputs and `columns` inputs is cut into vectors of `v` neighbouring rows in one column. A vector is
the sum of an entry of the main codebook and, where there is one, of an entry of the residual
codebook. Tensors of a layer:

| tensor | shape | content |
|---|---|---|
| `indices` | groups, ceil(rows / v), words | int32 words; see below |
| `centroids.weight` | groups, entries * v | main codebook, entry after entry |
| `res_centroids.weight` | groups, residual entries * v | residual codebook |
| `outlier_centroids.weight` | 1, outlier entries * outlier v | codebook of the outlier columns |
| `outlier_indices` | 1, ceil(rows / outlier v), outlier columns | unsigned 16 bits, as int16 |
| `perm` | columns | unsigned 16 bits, as int16; see below |
| `weight_scale`, `weight_bias` | columns | scale and offset of each column |
| `bias` | rows | the layer's own |

Words: the number of a vector has log2(residual entries) high bits for the residual codebook and
log2(entries) low bits for the main one. The numbers of a row of vectors lie side by side, the first
in the lowest bits, and may continue in the next word; each group of columns starts a new word. Rows
are padded to whole vectors. The outlier columns come first, then the groups. `perm[i]` is the
layer's column that is stored at place i. Scale and offset are applied last, in the layer's order.

`quantization_config` has `quant_method: vptq` and, in `config_for_layers`, an entry for each module
by its full name: `in_features`, `out_features`, `bias`, `group_num`, `group_size` (columns of a
group), `outlier_size` (columns), `enable_norm` (scales), `enable_perm`, and three pairs whose first
number is for outlier columns and whose second is for the others: `vector_lens`, `num_centroids`,
`num_res_centroids`. -1 or 0 means none. `is_indice_packed: false` (16-bit numbers, two tensors),
`indices_as_float: true` and `vector_quant_dim: in` are older or unfinished variants. Newer
checkpoints have `shared_layer_config` instead, by the last part of the name.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from conf.files.json_files import JsonObject, validated
from conf.formats.base.refusals import Refusal, refuse_activations, refuse_weights
from conf.formats.base.stored_format import KernelSupport, Machine, StoredFormat
from conf.formats.base.tensors import FLOATS, VECTOR_INDICES, WORD, Role, Shape, StoredTensor
from conf.formats.quant_args import (
    VECTOR,
    Codebooks,
    QuantArgs,
    QuantGroup,
    QuantizationConfig,
    vector_args,
)

METHOD = "vptq"
AMPERE = 8.0  # compute capability
MOST_ENTRIES = 65536  # numbers of outlier columns have 16 bits
UNSIGNED_16_BIT = ("I16", "U16")
ORDER_TYPES = (*UNSIGNED_16_BIT, "I64")
INDICES, OUTLIER_INDICES, ORDER = "indices", "outlier_indices", "perm"
CENTROIDS, RESIDUAL = "centroids.weight", "res_centroids.weight"
OUTLIERS = "outlier_centroids.weight"
SCALE, OFFSET = "weight_scale", "weight_bias"

Size = Annotated[int, Field(ge=1, le=2**24)]
Entries = Annotated[int, Field(ge=-1, le=MOST_ENTRIES)]
Pair = Annotated[list[Entries], Field(min_length=2, max_length=2)]


class LayerFields(BaseModel):
    """One entry of `config_for_layers` or `shared_layer_config`."""

    model_config = ConfigDict(strict=True, extra="allow")
    vector_lens: Pair
    num_centroids: Pair
    num_res_centroids: Pair
    in_features: Size | None = None
    out_features: Size | None = None
    group_num: Size = 1
    group_size: Annotated[int, Field(ge=-1, le=2**24)] = -1
    outlier_size: Annotated[int, Field(ge=-1, le=2**24)] = 0
    enable_norm: bool = False
    enable_perm: bool = False
    is_indice_packed: Literal[True] = True
    indices_as_float: Literal[False] = False
    vector_quant_dim: Literal["out"] = "out"

    @property
    def codebooks(self) -> Codebooks:
        outlier_length, length = self.vector_lens
        outlier_entries, entries = self.num_centroids
        has_outliers = outlier_length > 1 and outlier_entries > 0 and self.outlier_size > 0
        return Codebooks(
            vector_length=length,
            entries=entries,
            residual_entries=max(0, self.num_res_centroids[1]),
            groups=self.group_num,
            outlier_columns=self.outlier_size if has_outliers else 0,
            outlier_vector_length=outlier_length if has_outliers else 0,
            outlier_entries=outlier_entries if has_outliers else 0,
            has_scales=self.enable_norm,
            has_order=self.enable_perm,
        )


class ConfigFields(BaseModel):
    """`quantization_config` of a VPTQ checkpoint."""

    model_config = ConfigDict(strict=True, extra="allow")
    config_for_layers: dict[str, LayerFields] = {}
    shared_layer_config: dict[str, LayerFields] = {}


def read_fields(content: Mapping[str, object], where: str = "quantization_config") -> ConfigFields:
    """The typed fields; raises, with the key, for an invalid value."""
    given = {key: content[key] for key in ConfigFields.model_fields if content.get(key)}
    fields: ConfigFields = validated(ConfigFields, given, where)
    return fields


def layer_entry(codebooks: Codebooks, rows: int, columns: int, has_bias: bool) -> JsonObject:
    """A layer's entry of `config_for_layers`."""
    outlier_length, outlier_entries = codebooks.outlier_vector_length, codebooks.outlier_entries
    return {
        "bias": has_bias,
        "enable_norm": codebooks.has_scales,
        "enable_perm": codebooks.has_order,
        "group_num": codebooks.groups,
        "group_size": codebooks.group_columns(columns),
        "in_features": columns,
        "indices_as_float": False,
        "is_indice_packed": True,
        "num_centroids": [outlier_entries or -1, codebooks.entries],
        "num_res_centroids": [-1, codebooks.residual_entries or -1],
        "out_features": rows,
        "outlier_size": codebooks.outlier_columns,
        "vector_lens": [outlier_length or -1, codebooks.vector_length],
        "vector_quant_dim": "out",
    }


class Vptq(StoredFormat):
    name = "vptq"
    methods = (METHOD,)
    verified_methods = (METHOD,)
    packed_parts = (INDICES,)
    other_parts = ("_scale", "centroids.weight", OUTLIER_INDICES)
    marks = (f".{INDICES}", "centroids.weight")

    def covers(self, weights: QuantArgs | None, activations: QuantArgs | None) -> bool:
        return weights is not None and weights.type == VECTOR

    def fits(self, group: QuantGroup) -> bool:
        return super().fits(group) and group.activations is None

    def is_whole_config(self, config: QuantizationConfig | None) -> bool:
        return config is not None and config.method == METHOD

    def read_groups(self, method: str, content: Mapping[str, object]) -> list[QuantGroup]:
        """Layers with the same codebooks are one group. Single layers come last: they are the
        exceptions of shared entries."""
        fields = read_fields(content)
        targets: dict[Codebooks, list[str]] = {}
        for name, layer in fields.shared_layer_config.items():
            targets.setdefault(layer.codebooks, []).append(rf"re:.*\.{name}$")
        for name, layer in fields.config_for_layers.items():
            targets.setdefault(layer.codebooks, []).append(name)
        return [
            QuantGroup(f"{method}_{number}", vector_args(codebooks), targets=names, format=method)
            for number, (codebooks, names) in enumerate(targets.items())
        ]

    def refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> Refusal | None:
        if activations is not None:
            reason = "weights in codebooks are multiplied with 16-bit activations"
            return refuse_activations("type", reason)
        if weights.codebooks is None:
            return refuse_weights("codebooks", "weights in codebooks need the codebooks' sizes")
        fault = codebook_fault(weights.codebooks)
        return refuse_weights("codebooks", fault) if fault else None

    def bits(self, weights: QuantArgs) -> float:
        assert weights.codebooks is not None
        return weights.codebooks.bits

    def describe(self, weights: QuantArgs) -> str:
        books = weights.codebooks
        assert books is not None
        sizes = f"a codebook of {books.entries:,}"
        if books.residual_entries:
            sizes = f"codebooks of {books.entries:,} and {books.residual_entries:,}"
        outliers = f", {books.outlier_columns} outlier columns" if books.outlier_columns else ""
        return (
            f"vectors of {books.vector_length} in {sizes} entries ({books.bits:g} bits){outliers}"
        )

    def tensors(self, group: QuantGroup, rows: int, columns: int) -> dict[str, StoredTensor]:
        assert group.weights is not None
        books = group.weights.codebooks
        assert books is not None
        length, groups = books.vector_length, books.groups
        words = math.ceil(books.group_columns(columns) * books.index_bits / WORD)
        shape = (groups, math.ceil(rows / length), words)
        tensors = {
            INDICES: StoredTensor(Role.CODES, (shape,), ("I32",), encoding=VECTOR_INDICES),
            CENTROIDS: _codebook(groups, books.entries * length),
        }
        if books.residual_entries:
            tensors[RESIDUAL] = _codebook(groups, books.residual_entries * length)
        if books.outlier_columns:
            length = books.outlier_vector_length
            tensors[OUTLIERS] = _codebook(1, books.outlier_entries * length)
            shape = (1, math.ceil(rows / length), books.outlier_columns)
            tensors[OUTLIER_INDICES] = StoredTensor(Role.CODES, (shape,), UNSIGNED_16_BIT)
        if books.has_scales:
            tensors[SCALE] = StoredTensor(Role.COLUMN_SCALE, ((columns,),), FLOATS)
            tensors[OFFSET] = StoredTensor(Role.OTHER, ((columns,),), FLOATS)
        if books.has_order:
            tensors[ORDER] = StoredTensor(Role.COLUMN_ORDER, ((columns,),), ORDER_TYPES)
        return tensors

    def kernels(self, weights: QuantArgs | None) -> str:
        return "Quantline's VPTQ product (NVIDIA since Ampere); plain PyTorch elsewhere"

    def support(self, weights: QuantArgs | None, machine: Machine) -> KernelSupport | None:
        """vLLM itself has no kernel for it: our plugin adds the format."""
        if machine.capability is None or machine.capability < AMPERE:
            slow = "plain PyTorch, which unpacks the weights for every product: slow"
            return KernelSupport(True, slow, "recipe=w4a16_gptq")
        return KernelSupport(True, "Quantline's VPTQ product")

    def experts_refusal(self, weights: QuantArgs, activations: QuantArgs | None) -> str | None:
        return "no engine runs experts in codebooks"


def _codebook(groups: int, numbers: int) -> StoredTensor:
    shape: Shape = (groups, numbers)
    return StoredTensor(Role.CODEBOOK, (shape,), FLOATS)


def codebook_fault(books: Codebooks) -> str | None:
    """Why no engine runs these codebooks; None where they are sound."""
    if books.vector_length < 2 or (books.outlier_columns and books.outlier_vector_length < 2):
        return f"vectors have at least 2 weights, not {books.vector_length}"
    counts = [books.entries, books.residual_entries, books.outlier_entries]
    for count in [counts[0], *filter(None, counts[1:])]:
        if not 2 <= count <= MOST_ENTRIES or count & (count - 1):
            return (
                f"a codebook has a power of two of entries from 2 to {MOST_ENTRIES:,}, not {count}"
            )
    if books.outlier_columns and not books.outlier_entries:
        return "outlier columns need a codebook of their own"
    return None


FORMAT = Vptq()
