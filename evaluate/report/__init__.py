"""The report: from files of results to a decision, in Markdown and as one page."""
