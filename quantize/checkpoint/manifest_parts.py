"""The typed parts of `quantline.json`: what the manifest claims about a checkpoint."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from conf.schema.package import QUANTIZATION
from conf.schema.recipe import HEAD_FORMATS, NUMBER_TYPES, STEPS, STRATEGIES

Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]+$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]


class _Claim(BaseModel):
    """A part of the manifest. Fields that are not declared are kept as they are."""

    model_config = ConfigDict(strict=True, extra="allow")


class CodebookClaim(_Claim):
    """The codebooks of the recipe."""

    vector_length: PositiveCount
    entries: PositiveCount
    residual_entries: Count


class NumberClaim(_Claim):
    """A number format of the recipe."""

    type: Annotated[str, Field(pattern=f"^({'|'.join(NUMBER_TYPES)})$")]
    bits: Annotated[int, Field(ge=1, le=16)]
    strategy: Annotated[str, Field(pattern=f"^({'|'.join(STRATEGIES)})$")]
    group_size: Annotated[int, Field(ge=-1)] | None
    symmetric: bool
    dynamic: bool | str
    block_structure: list[int] | None = None
    scale_type: str | None = None
    codebooks: CodebookClaim | None = None


class RecipeClaim(_Claim):
    """The fields of a resolved recipe that checks depend on."""

    name: Text
    file: str | None
    description: str
    when: str
    hardware: str
    steps: Annotated[
        list[Annotated[str, Field(pattern=f"^({'|'.join(STEPS)})$")]], Field(min_length=1)
    ]
    weights: NumberClaim | None
    activations: NumberClaim | None
    lm_head: Annotated[str, Field(pattern=f"^({'|'.join(HEAD_FORMATS)})$")] | None
    kv_cache: str | None
    targets: Annotated[list[Text], Field(min_length=1)]
    ignore: list[Text]


class PackageClaim(_Claim):
    """The quantized file that the original was de-quantized from. Earlier versions did not record
    its format and terms."""

    sha256: Sha256 | None = None
    quantization: Annotated[str, Field(pattern=f"^{QUANTIZATION.pattern}$")] | None = None
    license: str | None = None


class ModelClaim(_Claim):
    """The options of the original that the model card shows."""

    name: Text
    id: str | None
    revision: str | None
    path: str | None = None
    weights: str | None = None
    package: PackageClaim | None = None

    @property
    def dequantized_from(self) -> PackageClaim | None:
        """The package, if the weights came from it: a folder or random weights go before it."""
        return None if self.path or self.weights == "random" else self.package


class _ProofFields(_Claim):
    """The fields of a proof in every schema."""

    formats: Annotated[dict[Text, PositiveCount], Field(min_length=1)]
    tensors: PositiveCount
    bytes: PositiveCount
    faults: Annotated[list[str], Field(max_length=0)]
    reload_divergence: Amount


class OldProofClaim(_ProofFields):
    """The proof in schemas 2 and 3."""

    model_config = ConfigDict(strict=True, extra="forbid")


class ProofClaim(_ProofFields):
    """The proof in the current schema."""

    layers: PositiveCount


class TextSourceClaim(_Claim):
    """Where the calibration text came from."""

    source: str | None = None
    id: str | None = None
    path: str | None = None


class TextCountsClaim(_Claim):
    """How much of the calibration text was used."""

    samples: Count = 0
    tokens: Count = 0


class TextClaim(_Claim):
    """The calibration text."""

    source: TextSourceClaim
    counts: TextCountsClaim


class CanaryClaim(_Claim):
    """A prompt and the checkpoint's answer."""

    prompt: str
    answer: str
