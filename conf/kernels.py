"""Which vLLM kernels run a recipe's format, and on which hardware."""

from conf.recipe_schema import RecipeConfig

# From vLLM 0.25.1 and 0.32.0. Seen running: the Hopper kernels on an H200, the INT8 kernel on ARM.
INT8 = "CutlassInt8ScaledMM on NVIDIA since Turing, CPUInt8ScaledMM on CPUs"
FP8 = "CutlassFP8ScaledMM on NVIDIA since Ada and Hopper, weight-only Marlin on Ampere"
WEIGHT_ONLY = "Machete on Hopper, Marlin on NVIDIA since Turing"
WEIGHT_ONLY_4 = f"{WEIGHT_ONLY}, CPUWNA16 on x86 CPUs"
ASYMMETRIC = "Marlin on NVIDIA since Turing, CPUWNA16 on x86 CPUs"
NVFP4 = "weight-only Marlin on NVIDIA since Turing, native on Blackwell"
DENSE = "the 16-bit kernels; vLLM has none for 2:4"


def kernels(recipe: RecipeConfig) -> str:
    """The kernels for a recipe, in words."""
    weights, activations = recipe.weights, recipe.activations
    if weights is None:
        return DENSE
    if activations is not None:
        return INT8 if weights.type == "int" else FP8
    if weights.type == "float":
        return NVFP4 if weights.bits == 4 else FP8
    if not weights.symmetric:
        return ASYMMETRIC
    return WEIGHT_ONLY_4 if weights.bits == 4 else WEIGHT_ONLY
