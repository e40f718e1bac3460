"""Capacity: the highest rates that meet the targets, their cost, and all trials behind them."""
