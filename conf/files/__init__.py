"""Readers of files that others wrote: JSON, YAML, safetensors headers, a model's config.json."""
