"""The names in vLLM that our kernels rely on, and a check that a version has them.

vLLM promises none of them. The check reads sources and imports nothing, so it also works for a
version that is not installed: `python -m serve.kernels.hooks [FOLDER]`.
"""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conf.app import run_plain
from conf.errors import bad_input, environment_failure

LINEAR = "model_executor/kernels/linear"
FLASH_ATTENTION = "v1/attention/backends/flash_attn"
ROPE = "model_executor/layers/rotary_embedding/base"
QUANTIZATION = "model_executor/layers/quantization"
UTILS = f"{QUANTIZATION}/utils"


USAGE = "python -m serve.kernels.hooks [FOLDER]"
HELP = f"""{USAGE}

Checks that a vLLM has every name that our kernels rely on. FOLDER is the folder of its package;
without it, the installed one is checked. Reads sources, and imports nothing of vLLM.

Exit codes: 0 it has them all, 3 some are missing (they are listed).

  --help, -h  This help.
  --version   Quantline's version."""


@dataclass(frozen=True)
class Hook:
    """A name in a module of vLLM."""

    module: str
    """A path inside of vLLM's package, without .py."""
    name: str
    """A top-level name, or CLASS.METHOD, or CLASS.FIELD."""
    parameters: tuple[str, ...] = ()
    """Parameters that we pass by name."""

    def __str__(self) -> str:
        parameters = f"({', '.join(self.parameters)})" if self.parameters else ""
        return f"vllm/{self.module}.py: {self.name}{parameters}"


SCALED = f"{LINEAR}/scaled_mm/ScaledMMLinearKernel"
MIXED = f"{LINEAR}/mixed_precision/MPLinearKernel"
OPERATIONS, MARLIN, QUANT = "_custom_ops", f"{UTILS}/marlin_utils", f"{UTILS}/quant_utils"
# fmt: off
HOOKS = (
    Hook("compilation/compiler_interface", "set_inductor_config", ("config", "compile_range")),
    Hook("compilation/piecewise_backend", "PiecewiseBackend.compile_all_ranges"),
    Hook("config/compilation", "CompilationConfig.compile_sizes"),
    Hook("config/compilation", "CompilationConfig.cudagraph_capture_sizes"),
    Hook("config/compilation", "CompilationConfig.mode"),
    *(Hook(f"{LINEAR}/__init__", name) for name in (
        "_POSSIBLE_INT8_KERNELS", "_POSSIBLE_FP8_KERNELS", "_POSSIBLE_WFP8A16_KERNELS",
        "_POSSIBLE_KERNELS",
        "Int8ScaledMMLinearKernel", "Int8ScaledMMLinearLayerConfig", "FP8ScaledMMLinearKernel",
        "FP8ScaledMMLinearLayerConfig", "MPLinearKernel", "MPLinearLayerConfig")),
    Hook(SCALED, "ScaledMMLinearKernel.__init__", ("c", "layer_param_names")),
    Hook(SCALED, "ScaledMMLinearKernel.is_supported", ("compute_capability",)),
    *(Hook(SCALED, f"Int8ScaledMMLinearLayerConfig.{field}")
      for field in ("is_static_input_scheme", "input_symmetric")),
    *(Hook(SCALED, f"FP8ScaledMMLinearLayerConfig.{field}")
      for field in ("weight_quant_key", "activation_quant_key", "input_dtype", "out_dtype")),
    Hook(SCALED, "FP8ScaledMMLinearKernel.apply_weights", ("layer", "x", "bias")),
    Hook(MIXED, "MPLinearKernel.get_min_capability"),
    Hook(MIXED, "MPLinearKernel.apply_weights", ("layer", "x", "bias")),
    *(Hook(MIXED, f"MPLinearLayerConfig.{field}") for field in (
        "full_weight_shape", "partition_weight_shape", "weight_type", "act_type", "group_size",
        "zero_points", "out_type")),
    Hook(OPERATIONS, "cutlass_scaled_mm", ("a", "b", "scale_a", "scale_b", "out_dtype")),
    Hook(OPERATIONS, "scaled_int8_quant", ("input",)),
    Hook(OPERATIONS, "scaled_fp8_quant", ("input", "use_per_token_if_dynamic")),
    Hook(OPERATIONS, "gptq_marlin_repack", ("b_q_weight", "size_k", "size_n", "num_bits")),
    Hook(OPERATIONS, "machete_supported_schedules", ("a_type", "b_type", "group_scales_type")),
    Hook(OPERATIONS, "machete_prepack_B", (
        "b_q_weight", "a_type", "b_type", "group_scales_type")),
    Hook(OPERATIONS, "machete_mm", (
        "a", "b_q", "b_type", "b_group_scales", "b_group_zeros", "b_group_size", "schedule")),
    Hook(OPERATIONS, "cutlass_w4a8_mm", (
        "a", "b_q", "b_group_scales", "b_group_size", "b_channel_scales", "a_token_scales",
        "maybe_schedule")),
    Hook(OPERATIONS, "cutlass_encode_and_reorder_int4b", ("b",)),
    Hook(OPERATIONS, "cutlass_pack_scale_fp8", ("scales",)),
    Hook(MARLIN, "apply_gptq_marlin_linear", (
        "input", "weight", "weight_scale", "weight_zp", "workspace", "wtype",
        "output_size_per_partition", "input_size_per_partition")),
    Hook(MARLIN, "marlin_permute_scales", ("s", "size_k", "size_n", "group_size")),
    Hook(MARLIN, "marlin_zero_points", ("zp", "size_k", "size_n", "num_bits")),
    Hook(MARLIN, "marlin_make_workspace_new", ("device", "max_blocks_per_sm")),
    Hook(f"{MARLIN}_fp8", "fp8_fused_exponent_bias_into_scales", ("scales",)),
    Hook(f"{MARLIN}_fp8", "apply_fp8_marlin_linear", (
        "input", "weight", "weight_scale", "workspace", "size_n", "size_k", "bias")),
    Hook(QUANT, "convert_packed_uint4b8_to_signed_int4_inplace", ("t",)),
    *(Hook(QUANT, f"GroupShape.{name}")
      for name in ("is_per_tensor", "is_per_token", "is_per_channel", "PER_TOKEN")),
    Hook("model_executor/layers/quantization/input_quant_fp8", "QuantFP8.__init__", (
        "static", "group_shape")),
    Hook(f"{QUANTIZATION}/__init__", "register_quantization_config", ("quantization",)),
    Hook(f"{QUANTIZATION}/__init__", "QUANTIZATION_METHODS"),
    *(Hook(f"{QUANTIZATION}/base_config", f"QuantizationConfig.{name}") for name in (
        "get_name", "get_supported_act_dtypes", "get_min_capability", "get_config_filenames",
        "from_config", "get_quant_method", "apply_vllm_mapper")),
    Hook("model_executor/models/utils", "WeightsMapper.apply_dict", ("values",)),
    Hook("model_executor/layers/linear", "LinearBase"),
    Hook("model_executor/layers/linear", "UnquantizedLinearMethod"),
    Hook("model_executor/layers/linear", "LinearMethodBase.create_weights", (
        "layer", "input_size_per_partition", "output_partition_sizes", "input_size", "output_size",
        "params_dtype")),
    Hook("config/load", "LoadConfig.load_format"),
    Hook("config/__init__", "get_current_vllm_config_or_none"),
    Hook("config/compilation", "CompilationConfig.compile_ranges_endpoints"),
    Hook("config/compilation", "CompilationConfig.max_cudagraph_capture_size"),
    Hook("config/compilation", "CompilationConfig.inductor_compile_config"),
    Hook("config/vllm", "VllmConfig.additional_config"),
    Hook("compilation/passes/inductor_pass", "InductorPass"),
    Hook("compilation/passes/inductor_pass", "PassContext.__init__", ("compile_range",)),
    Hook("compilation/passes/inductor_pass", "get_pass_context"),
    Hook("compilation/passes/pass_manager", "PostGradPassManager.configure", ("config",)),
    Hook("compilation/passes/pass_manager", "PostGradPassManager.add", ("pass_",)),
    Hook("ir/ops/layernorm", "fused_add_rms_norm", (
        "x", "x_residual", "weight", "epsilon", "variance_size")),
    Hook("model_executor/layers/activation", "SiluAndMul.forward_native", ("x",)),
    Hook("scalar_type", "scalar_types"),
    *(Hook(FLASH_ATTENTION, name) for name in (
        "FlashAttentionBackend.get_impl_cls", "flash_attn_varlen_func", "get_scheduler_metadata",
        "reshape_and_cache_flash")),
    Hook(FLASH_ATTENTION, "FlashAttentionMetadataBuilder.build", (
        "common_prefix_len", "common_attn_metadata")),
    *(Hook(FLASH_ATTENTION, f"FlashAttentionMetadata.{field}") for field in (
        "num_actual_tokens", "max_query_len", "query_start_loc", "seq_lens", "block_table",
        "causal")),
    Hook(FLASH_ATTENTION, "FlashAttentionImpl.forward", (
        "layer", "query", "key", "value", "kv_cache", "attn_metadata", "output", "output_scale",
        "output_block_scale")),
    Hook(FLASH_ATTENTION, "FlashAttentionImpl.do_kv_cache_update", (
        "layer", "key", "value", "kv_cache", "slot_mapping")),
    *(Hook("v1/attention/backend", f"CommonAttentionMetadata.{field}") for field in (
        "num_reqs", "max_query_len", "query_start_loc_cpu", "seq_lens_cpu_upper_bound", "causal")),
    *(Hook("forward_context", f"ForwardContext.{field}") for field in (
        "no_compile_layers", "attn_metadata", "cudagraph_runtime_mode", "batch_descriptor")),
    Hook("forward_context", "BatchDescriptor.uniform"),
    Hook("forward_context", "get_forward_context"),
    Hook("forward_context", "is_forward_context_available"),
    Hook(ROPE, "RotaryEmbedding.forward_native"),
    Hook(ROPE, "RotaryEmbedding.forward_cuda"),
    Hook("model_executor/layers/layernorm", "RMSNorm"),
)
# fmt: on


def installed() -> Path:
    """The folder of the installed vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise environment_failure("vLLM is not installed; name a folder of it")
    return Path(next(iter(spec.submodule_search_locations)))


def missing(folder: Path) -> list[str]:
    """What a vLLM lacks of the names that we rely on."""
    return [f"{hook}: {fault}" for hook in HOOKS if (fault := _fault(folder, hook))]


def _fault(folder: Path, hook: Hook) -> str | None:
    path = folder / f"{hook.module}.py"
    if not path.is_file():
        return "there is no such file"
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    found: ast.AST | None = None
    for part in hook.name.split("."):
        found = next((node for name, node in _names(body) if name == part), None)
        if found is None:
            return f"there is no {part}"
        body = found.body if isinstance(found, ast.ClassDef) else []
    if not hook.parameters:
        return None
    assert isinstance(found, ast.FunctionDef), hook
    arguments = found.args
    known = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    unknown = [name for name in hook.parameters if name not in known]
    return f"there is no parameter {', '.join(unknown)}" if unknown else None


def _names(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Every name that statements define, also those under an if."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.If):
            yield from _names([*node.body, *node.orelse])


def main(arguments: list[str]) -> None:
    """Says what is missing."""
    from serve.kernels.linear.catalog import missing_products

    folder = _folder(arguments)
    faults = missing(folder) + missing_products()
    if faults:
        raise environment_failure("\n".join([f"{folder}: {len(faults)} are missing", *faults]))
    print(f"{folder} has all {len(HOOKS)} names, and all products are here")


def _folder(arguments: list[str]) -> Path:
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        raise bad_input(f"{' '.join(arguments)}: write {USAGE}")
    if not arguments:
        return installed()
    folder = Path(arguments[0]).expanduser()
    if not (folder / "__init__.py").is_file():
        raise bad_input(f"{folder}: is not the folder of a vllm package; it has no __init__.py")
    return folder


if __name__ == "__main__":
    run_plain(HELP, main)
