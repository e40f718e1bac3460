"""Served loads: percentiles of their requests, and requests in progress over time."""
