"""The formats of traffic files, one module each. `FORMAT` describes what a record looks like."""
