"""The structures that the CUDA driver reads have its layout, as cuda.h defines it."""

import ctypes

from serve.kernels.products.cuda_kernels.compiled import (
    LaunchAttribute,
    LaunchConfig,
    overlapping_config,
)


def test_layout() -> None:
    assert ctypes.sizeof(LaunchConfig) == 56
    assert LaunchConfig.shared_bytes.offset == 24
    assert LaunchConfig.stream.offset == 32
    assert LaunchConfig.attributes.offset == 40
    assert LaunchConfig.attribute_count.offset == 48
    assert ctypes.sizeof(LaunchAttribute) == 72
    assert LaunchAttribute.value.offset == 8


def test_an_overlapping_launch_has_one_attribute() -> None:
    config = overlapping_config(blocks=7, threads=256, shared_bytes=1 << 16, stream=99)
    assert list(config.grid) == [7, 1, 1]
    assert list(config.block) == [256, 1, 1]
    assert (config.shared_bytes, config.stream) == (1 << 16, 99)
    assert config.attribute_count == 1
    attribute = config.attributes[0]
    assert (attribute.id, attribute.value) == (6, 1)
