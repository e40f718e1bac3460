"""`python -m quantize.verify PATH`: holds what a checkpoint contains against what it claims.

Nothing here uses the code that wrote it: the files are opened again, and for every linear layer of
the architecture the tensors found are held against the config's format, and against the recipe
where the manifest names one.
"""

import math
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.utils import match_named_modules

from conf.errors import bad_input, gate_failed
from conf.models import read_config
from conf.recipe_schema import HEAD_FORMATS, prunes
from conf.terminal import say
from quantize import manifest
from quantize.load import empty_model
from quantize.tensors import CheckpointTensors, breaks_2_of_4, unpack_integers

FP8 = torch.float8_e4m3fn
# Tensors that a format may carry beside those that it needs.
OPTIONAL = ("_g_idx", "k_scale", "v_scale", "_zero_point", "input_scale", "input_global_scale")

USAGE = "python -m quantize.verify PATH"
HELP = f"""{USAGE}

Verifies a compressed-tensors checkpoint: opens its files again and compares every tensor with what
config.json and, where there is one, quantline.json say.

  PATH       Folder of the checkpoint.
  --version  Prints the version.

Exit codes: 0 verified, 2 no such checkpoint or not readable, 4 a fault was found (all are listed).
"""


@dataclass
class Proof:
    """What was found. `faults` is empty for a checkpoint that is what it says."""

    formats: dict[str, int] = field(default_factory=dict)
    """Linear layers by the format found in the file."""
    tensors: int = 0
    """Tensors read."""
    bytes: int = 0
    """Bytes of all tensors."""
    faults: list[str] = field(default_factory=list)
    """Each names a tensor or module and what is wrong with it."""


def verify(
    folder: Path,
    sparse: bool | None = None,
    source: Path | None = None,
    recipe: dict[str, Any] | None = None,
    trust_remote_code: bool = False,
) -> Proof:
    """Proves a compressed-tensors checkpoint. `sparse`: whether 2:4 is claimed, if not null;
    `source`: the original, to show that the embedding and a head left alone are untouched;
    `recipe`: what was asked for, the manifest's where there is one."""
    config = read_config(folder)
    model = empty_model(folder, trust_remote_code)
    claimed = manifest.find(folder)
    if recipe is None:
        recipe = claimed.recipe_config if claimed else {}
    if sparse is None:
        sparse = prunes(recipe.get("steps", []))
    with CheckpointTensors(folder) as tensors:
        proof = _Check(model, config, recipe, sparse, tensors).run()
        if source is not None:
            with CheckpointTensors(source) as original:
                proof.faults += _touched(tensors, original)
    if claimed:
        proof.faults += manifest.changed(folder, claimed.files)
    return proof


def _touched(tensors: CheckpointTensors, original: CheckpointTensors) -> list[str]:
    """What no step has any business with, and yet differs from the original."""
    same = [name for name in ("model.embed_tokens.weight", "lm_head.weight") if name in original]
    return [
        f"{name} is not the original's"
        for name in same
        if name in tensors
        and tensors[name].dtype == original[name].dtype
        and not torch.equal(tensors[name], original[name])
    ]


class _Check:
    def __init__(
        self,
        model: Any,
        config: dict[str, Any],
        recipe: dict[str, Any],
        sparse: bool,
        tensors: CheckpointTensors,
    ) -> None:
        self.proof = Proof()
        self.recipe, self.sparse, self.tensors = recipe, sparse, tensors
        self.model = model
        self.schemes = _schemes(config, self.model)
        self.linear = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear)
        }
        targets, ignore = recipe.get("targets", ["Linear"]), recipe.get("ignore", ["lm_head"])
        self.named = {name for name, _ in match_named_modules(model, targets, ignore)}
        self.expected: set[str] = set()

    def run(self) -> Proof:
        found: Counter[str] = Counter()
        for name, module in self.linear.items():
            rows, columns = module.out_features, module.in_features
            found[self._linear(name, rows, columns, self.schemes.get(name))] += 1
        self.proof.formats = dict(found)
        self._against_recipe()
        self._names()
        self._values()
        return self.proof

    def fault(self, message: str) -> None:
        self.proof.faults.append(message)

    def _linear(self, name: str, rows: int, columns: int, scheme: Any) -> str:
        """Checks one layer's tensors and returns the format that they have."""
        if scheme is None or scheme.weights is None:
            return self._dense(name, rows, columns)
        weights = scheme.weights
        bits = weights.num_bits
        integer = _plain(weights.type) == "int"
        packed = scheme.format in ("pack-quantized", "nvfp4-pack-quantized")
        if packed:
            width = columns * bits // (32 if integer else 8)
            self._shape(f"{name}.weight_packed", (rows, width))
        else:
            self._shape(f"{name}.weight", (rows, columns))
            self._stored_as(f"{name}.weight", torch.int8 if integer else FP8)
        if f"{name}.weight_shape" in self.tensors:
            self.expected.add(f"{name}.weight_shape")
            if self.tensors[f"{name}.weight_shape"].tolist() != [rows, columns]:
                self.fault(f"{name}.weight_shape is not {rows} x {columns}")
        self._shape(f"{name}.weight_scale", _scale_shape(weights, rows, columns))
        if weights.strategy == "tensor_group":
            self._shape(f"{name}.weight_global_scale", None)
        if not weights.symmetric:
            self._shape(f"{name}.weight_zero_point", None)
        inputs = scheme.input_activations
        if inputs is not None and inputs.dynamic is False:
            self._shape(f"{name}.input_scale", None)
        self._mask(name, columns, bits if packed else None)
        kind = "int" if integer else "float"
        group = f" of {weights.group_size}" if weights.group_size else ""
        return f"{kind}{bits}, a scale for each {_plain(weights.strategy)}{group}"

    def _dense(self, name: str, rows: int, columns: int) -> str:
        weight = f"{name}.weight"
        tied = name == "lm_head" and self.model.config.tie_word_embeddings
        if tied and weight not in self.tensors:
            return "tied to the embedding"
        self._shape(weight, (rows, columns))
        self._mask(name, columns, None)
        kind = str(self._dtype(weight)) if weight in self.tensors else "missing"
        return kind.removeprefix("torch.")

    def _shape(self, name: str, shape: tuple[int, ...] | None) -> None:
        self.expected.add(name)
        if name not in self.tensors:
            self.fault(f"{name} is missing")
        elif shape is not None and self.tensors.shape(name) != shape:
            self.fault(f"{name} has the shape {self.tensors.shape(name)}, {shape} is expected")

    def _stored_as(self, name: str, dtype: torch.dtype) -> None:
        if name in self.tensors and self._dtype(name) != dtype:
            self.fault(f"{name} is stored as {self._dtype(name)}, {dtype} is expected")

    def _dtype(self, name: str) -> torch.dtype:
        return self.tensors[name].dtype

    def _mask(self, name: str, columns: int, packed_bits: int | None) -> None:
        """2:4 where it is claimed, in what the file holds."""
        if not self.sparse or name not in self.named:
            return
        stored = f"{name}.weight" if packed_bits is None else f"{name}.weight_packed"
        if stored not in self.tensors:
            return
        weights = self.tensors[stored]
        if packed_bits is not None:
            weights = unpack_integers(weights, packed_bits, columns)
        broken = breaks_2_of_4(weights)
        if broken:
            self.fault(f"{stored}: {broken} groups of four have fewer than two zeros")

    def _against_recipe(self) -> None:
        """The config's schemes are the ones that the recipe asks for, on the modules it names."""
        if not self.recipe or self.recipe["file"]:
            return  # nothing is claimed beside the config itself
        weights, head = self.recipe["weights"], self.recipe["lm_head"]
        asked = dict.fromkeys(self.named, (weights, self.recipe["activations"])) if weights else {}
        if head:
            asked["lm_head"] = (asdict(HEAD_FORMATS[head]), None)
        for name in sorted(set(asked) ^ set(self.schemes)):
            state = "is not" if name in asked else "is, without being asked for,"
            self.fault(f"{name} {state} quantized")
        for name in sorted(set(asked) & set(self.schemes)):
            scheme = self.schemes[name]
            self._against_format(name, "weights", asked[name][0], scheme.weights)
            self._against_format(name, "activations", asked[name][1], scheme.input_activations)

    def _against_format(self, name: str, part: str, asked: Any, found: Any) -> None:
        if (asked is None) != (found is None):
            self.fault(f"{name}: {part} are {'not ' if found is None else ''}quantized")
        if asked is None or found is None:
            return
        for ours, theirs in (
            ("bits", "num_bits"),
            ("strategy", "strategy"),
            ("group_size", "group_size"),
            ("symmetric", "symmetric"),
        ):
            value = _plain(getattr(found, theirs))
            if value != asked[ours]:
                self.fault(f"{name}: {part} have {ours} {value}, the recipe asks for {asked[ours]}")

    def _names(self) -> None:
        """Every parameter of the architecture is there, and nothing else is."""
        for name, _ in self.model.named_parameters():
            owner, _, part = name.rpartition(".")
            if owner not in self.linear or part == "bias":
                self._shape(name, None)
        for name in sorted(set(self.tensors) - self.expected):
            if not name.endswith(OPTIONAL):
                self.fault(f"{name} belongs to no part of the model")

    def _values(self) -> None:
        for name in self.tensors:
            tensor = self.tensors[name]
            size = tensor.numel() * tensor.element_size()
            self.proof.tensors += 1
            self.proof.bytes += size
            self._size(name, size)
            if tensor.is_floating_point():
                wide = tensor.float()
                if not torch.isfinite(wide).all():
                    self.fault(f"{name} holds NaN or infinite values")
                elif name.endswith("_scale") and not (wide != 0).all():
                    self.fault(f"{name} holds scales of zero")

    def _size(self, name: str, found: int) -> None:
        """Quantized weights take the room that their bits say."""
        owner, _, part = name.rpartition(".")
        if owner in self.schemes and part in ("weight", "weight_packed"):
            weights = self.linear[owner].out_features * self.linear[owner].in_features
            expected = weights * self.schemes[owner].weights.num_bits / 8
            if found != expected:
                self.fault(f"{name} takes {found} bytes, {expected:.0f} are expected")


def _plain(value: Any) -> Any:
    """An enum's value; compressed-tensors gives the one or the other."""
    return getattr(value, "value", value)


def _schemes(config: dict[str, Any], model: torch.nn.Module) -> dict[str, QuantizationScheme]:
    """The scheme of every module that the config says is quantized."""
    quantization = config.get("quantization_config")
    if quantization is None:
        return {}
    if quantization.get("quant_method") != "compressed-tensors":
        raise bad_input(
            f"config.json: quant_method is {quantization.get('quant_method')}; only "
            "compressed-tensors checkpoints can be proven"
        )
    found: dict[str, QuantizationScheme] = {}
    for group in quantization.get("config_groups", {}).values():
        scheme = QuantizationScheme.model_validate(group)
        scheme.format = scheme.format or quantization.get("format")
        for name, module in match_named_modules(
            model, scheme.targets, quantization.get("ignore", [])
        ):
            if isinstance(module, torch.nn.Linear):
                found[name] = scheme
    return found


def _scale_shape(weights: Any, rows: int, columns: int) -> tuple[int, ...] | None:
    if weights.strategy == "channel":
        return (rows, 1)
    if weights.strategy in ("group", "tensor_group"):
        return (rows, columns // weights.group_size)
    if weights.strategy == "block":
        height, width = weights.block_structure
        return (math.ceil(rows / height), math.ceil(columns / width))
    return None


def main(arguments: list[str]) -> None:
    from conf.app import report
    from conf.entry import answer_flags

    answer_flags(arguments, HELP)
    try:
        if len(arguments) != 1 or arguments[0].startswith("-"):
            raise bad_input(f"{' '.join(arguments) or 'no arguments'}: write {USAGE}")
        proof = verify(Path(arguments[0]))
        for kind, count in sorted(proof.formats.items()):
            print(f"{count:6} layers  {kind}")
        print(f"{proof.tensors:6} tensors, {proof.bytes / 1e6:.1f} MB")
        if proof.faults:
            for fault in proof.faults[1:]:
                say(f"fault: {fault}")
            raise gate_failed(f"{arguments[0]}: {len(proof.faults)} faults; {proof.faults[0]}")
        print("proven: every layer is what the config says")
    except Exception as error:
        sys.exit(report(error))


if __name__ == "__main__":
    main(sys.argv[1:])
