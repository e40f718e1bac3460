"""Loads a checkpoint in an engine: asked once, or served over HTTP."""
