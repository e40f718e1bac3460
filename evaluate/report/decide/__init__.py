"""Decides what to serve, by pure functions of rows.

`decision` is the entry. Cells of rows are put into comparison groups (`comparison`), ranked
(`ranking`) and checked against the targets. `recommend` chooses for one workload, `mix` for many.
Both use the measured accuracy (`quality`) and the needed memory (`memory`).
"""
