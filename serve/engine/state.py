"""The state of a server: files in a folder that its starter and its middleware both see."""

STATE = "QUANTLINE_SERVER_STATE"
"""The variable that names the folder."""
READY, DRAINING, ABORTING = "ready", "draining", "aborting"
