"""Shows a decision: tables, sentences, charts, Markdown and the page."""
