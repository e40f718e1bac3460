"""The report: turns results files into a decision, as Markdown and as one page."""
