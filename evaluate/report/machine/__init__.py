"""The report for programs: report.json by a declared schema, and the tables as CSV."""
