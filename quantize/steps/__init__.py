"""The steps of a recipe: their options, llm-compressor's modifiers, and what each step needs."""
