"""The charts, as Vega-Lite."""
