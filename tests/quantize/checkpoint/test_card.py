"""The model card says where the original's weights came from."""

from dataclasses import asdict
from pathlib import Path

import pytest

from quantize.checkpoint import manifest
from quantize.checkpoint.card import model_card
from quantize.checkpoint.manifest_parts import ModelClaim
from tests.conftest import quantize_config
from tests.quantize.models.made import add_manifest, make_checkpoint, make_original

CODER = "model=qwen2.5-coder-0.5b"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    folder = make_checkpoint(root / "int8", make_original(root / "original"), "int8")
    add_manifest(folder, root / "original")
    return folder


def card(published: Path, model: dict[str, object]) -> str:
    record = manifest.read(published)
    return model_card(record.model_copy(update={"original": ModelClaim.model_validate(model)}))


def test_a_dequantized_original_is_called_one(published: Path) -> None:
    text = card(published, asdict(quantize_config(CODER).model))
    assert (
        "de-quantized to bf16 from a GGUF file of nominally 4 bits (Q4_K_M, sha256 1d961463" in text
    )
    assert "not the vendor's 16-bit model" in text
    assert "\nlicense: apache-2.0\n" in text
    assert "revision main" not in text


@pytest.mark.parametrize("option", ["model.path=/models/coder", "model.weights=random"])
def test_other_weights_of_a_packaged_model_are_not(published: Path, option: str) -> None:
    text = card(published, asdict(quantize_config(CODER, option).model))
    assert "GGUF" not in text
    assert "revision main" in text


def test_a_package_of_an_earlier_version_is_read(published: Path) -> None:
    """It recorded one wheel, and not the format of its file."""
    package = {"requirement": "name==1", "wheel_sha256": "0" * 64, "file": "a.gguf"}
    model = {"name": "old", "id": None, "revision": "main", "package": package}
    text = card(published, model)
    assert "- original: micro, de-quantized to bf16 from a GGUF file, weights sha256" in text
