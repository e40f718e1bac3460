"""What a candidate needs on the card: its weights, its graphs, and the cache of the load itself."""

from evaluate.report.decide.comparable import Entry

REQUESTS = ("batch", "concurrency")


def need_gib(entry: Entry) -> float | None:
    """Not what the engine took, which is all there is, but what this load makes it use. For an
    engine that takes as it goes, the peak."""
    memory = entry.row.memory
    weights, peak = memory.get("weights_gib"), memory.get("peak_gib")
    cached = memory.get("kv_cache_tokens")
    if weights is None or not cached:
        return peak
    requests = next((entry.row.settings[n] for n in REQUESTS if entry.row.settings.get(n)), None)
    if requests is None:
        return None  # how many of an open loop run at once is not known
    tokens = requests * (entry.row.settings["input_tokens"] + entry.row.settings["output_tokens"])
    tokens = min(tokens, cached)
    graphs = memory.get("graphs_gib", 0.0)
    return float(weights + graphs + tokens * kv_token_gib(memory, weights + graphs))


def kv_token_gib(memory: dict[str, float], fixed: float) -> float:
    """Stated, or what is left of the peak when everything else is taken off; that also holds
    activations, a few hundredths more than the cache itself."""
    if "kv_token_bytes" in memory:
        return memory["kv_token_bytes"] / 2**30
    return max(0.0, memory.get("peak_gib", fixed) - fixed) / memory["kv_cache_tokens"]
