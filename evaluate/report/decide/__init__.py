"""Decides what to serve, by pure functions of rows.

`decision` tells the story. Cells of rows come in comparison groups (`comparison`), are ranked
(`ranking`), held to the targets and chosen among (`recommend` for one workload, `mix` for many),
with the accuracy that was judged (`quality`) and the memory they need (`memory`).
"""
