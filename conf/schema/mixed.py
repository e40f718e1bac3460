"""A recipe whose layers have several formats: which module has which, as it was chosen."""

from dataclasses import dataclass, field, fields, replace

from conf.schema.auto import ORIGINAL
from conf.schema.number_format import NumberFormat
from conf.schema.recipe import RecipeConfig


@dataclass
class LayerFormat:
    """How the modules of a layer are stored."""

    name: str
    """A name of `recipe.auto.formats`; that of the recipe's own format is spelled like them."""
    weights: NumberFormat | None
    """null leaves the modules as they are."""
    activations: NumberFormat | None = None


@dataclass
class FormatGroup(LayerFormat):
    """The modules that have one format."""

    modules: list[str] = field(default_factory=list)


@dataclass
class Choice:
    """The chosen formats, and what they are predicted to cost."""

    groups: list[FormatGroup]
    bits: float
    """Bits a weight of the layers, scales included."""
    summed_divergence: float
    """The divergences of all layers from the original, each estimated alone, in nats."""
    divergence: float | None
    """Measured with all layers in their formats at once; null where no weights were measured."""
    recovery: float | None
    """The predicted share of the original's quality: exp(-divergence)."""

    def format_of(self) -> dict[str, LayerFormat]:
        """The format of every module."""
        return {name: group for group in self.groups for name in group.modules}

    @property
    def original_modules(self) -> list[str]:
        """Modules that stay as they are."""
        return [name for group in self.groups if not group.weights for name in group.modules]


def prediction_lines(divergence: float | None, recovery: float | None) -> list[str]:
    """What a choice of formats is predicted to cost, if it was measured."""
    if divergence is None or recovery is None:
        return []
    return [f"predicted by plain rounding: divergence {divergence:.4f}, recovery {recovery:.4f}"]


@dataclass
class MixedRecipe(RecipeConfig):
    """A recipe with its choice, as it runs and as the manifest records it."""

    choice: Choice | None = None

    @property
    def made_choice(self) -> Choice:
        assert self.choice is not None
        return self.choice


def with_choice(recipe: RecipeConfig, choice: Choice) -> MixedRecipe:
    values = {entry.name: getattr(recipe, entry.name) for entry in fields(recipe)}
    return MixedRecipe(**values | {"choice": choice})


def layer_formats(recipe: RecipeConfig) -> list[LayerFormat]:
    """The formats that a layer may have; the recipe's own comes first. Groups are at most as wide
    as the recipe's own, so that they fit the same layers."""
    assert recipe.auto is not None
    assert recipe.weights is not None
    formats = [LayerFormat(_own_name(recipe), recipe.weights, recipe.activations)]
    for name in dict.fromkeys(recipe.auto.formats):
        layer_format = _named(name)
        weights, width = layer_format.weights, recipe.weights.group_size
        if weights is not None and weights.strategy == "group" and weights.group_size and width:
            weights = replace(weights, group_size=min(weights.group_size, width))
            layer_format = replace(layer_format, weights=weights)
        known = [(other.weights, other.activations) for other in formats]
        if (layer_format.weights, layer_format.activations) not in known:
            formats.append(layer_format)
    return formats


def _own_name(recipe: RecipeConfig) -> str:
    weights, activations = recipe.weights, recipe.activations
    assert weights is not None
    kinds = {"int": "", "float": "fp", "vector": "v"}
    multiplied = f"a{kinds[activations.type]}{activations.bits}" if activations else "a16"
    size = f"_g{weights.group_size}" if weights.group_size else ""
    return f"w{kinds[weights.type]}{weights.bits}{multiplied}{size}"


def _named(name: str) -> LayerFormat:
    weights = NumberFormat(type="int", bits=8, strategy="group", group_size=128)
    tokens = NumberFormat(type="int", bits=8, strategy="token", dynamic=True)
    channels = NumberFormat(type="int", bits=8, strategy="channel")
    return {
        "w4a16_g64": LayerFormat(name, replace(weights, bits=4, group_size=64)),
        "w4a16_g32": LayerFormat(name, replace(weights, bits=4, group_size=32)),
        "w8a16": LayerFormat(name, weights),
        "w8a8": LayerFormat(name, channels, tokens),
        "fp8": LayerFormat(name, replace(channels, type="float"), replace(tokens, type="float")),
        ORIGINAL: LayerFormat(name, None),
    }[name]
