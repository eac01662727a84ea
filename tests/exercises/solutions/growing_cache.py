class KVCache(KVCache):  # noqa: F821 (appended to 02_kv_cache/kv_cache.py)
    """Starts with 64 places and doubles when they are full: each token is copied once on average, not once a step."""

    def __init__(self, config, capacity, device, dtype):
        super().__init__(config, min(capacity, 64), device, dtype)

    def attend(self, layer, q, k, v):
        needed = self.length + len(q)
        if needed > self.capacity:
            capacity = max(needed, 2 * self.capacity)
            self.k, self.v = self.grown(self.k, capacity), self.grown(self.v, capacity)
            self.capacity = capacity
        return super().attend(layer, q, k, v)

    def grown(self, old, capacity):
        new = old.new_empty(*old.shape[:2], capacity, old.shape[-1])
        new[:, :, : self.length] = old[:, :, : self.length]
        return new
