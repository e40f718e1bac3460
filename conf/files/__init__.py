"""Readers of files of other tools: JSON, YAML, safetensors headers, a model's config.json."""
