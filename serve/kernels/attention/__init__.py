"""Attention of steps that decode one token of each request, and of whole prompts."""
