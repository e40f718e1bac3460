"""Traffic: requests with lengths, prefixes, turns and arrivals of their own."""
