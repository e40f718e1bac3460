"""The options of a recipe that chooses a format for each layer by measuring what it loses."""

from dataclasses import dataclass, field

from conf.schema.ranges import above, choices, within

ORIGINAL = "original"
LAYER_FORMATS = ("w4a16_g64", "w4a16_g32", "w8a16", "w8a8", "fp8", ORIGINAL)
BITS = above(0, 16)
# A recovery of 1 leaves nothing to quantize.
RECOVERY = above(0, 0.9999)
DEFAULT_BITS = 4.5


@dataclass
class AutoOptions:
    """How a format is chosen for each layer, and the limit that the choice keeps."""

    bits: float | None = field(default=None, metadata=BITS)
    """Most bits a weight of the layers, scales included. 4.5 without any limit."""
    min_recovery: float | None = field(default=None, metadata=RECOVERY)
    """Instead of bits: the fewest bits whose recovery, predicted by plain rounding, is this."""
    formats: list[str] = field(
        default_factory=lambda: ["w8a16", ORIGINAL], metadata=choices(*LAYER_FORMATS)
    )
    """The formats that a layer may have instead of the recipe's own: w4a16_g64, w4a16_g32, w8a16,
    w8a8, fp8, or original (16 bit)."""
    samples: int = field(default=8, metadata=within(1, 10**4))
    """Calibration sequences on which predictions are compared."""
    length: int = field(default=256, metadata=within(8, 65536))
    """Tokens of each of them."""

    def __post_init__(self) -> None:
        if self.bits is not None and self.min_recovery is not None:
            raise ValueError(
                f"recipe.auto.bits={self.bits:g} and recipe.auto.min_recovery="
                f"{self.min_recovery:g}: give one limit, not two"
            )
        if not self.formats:
            raise ValueError("recipe.auto.formats=[]: name at least one other format, as w8a16")

    @property
    def most_bits(self) -> float | None:
        """The limit in bits; none where the recovery is the limit."""
        return None if self.min_recovery is not None else self.bits or DEFAULT_BITS
