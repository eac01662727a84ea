"""Measurements that need a GPU: __main__.py runs them all, and says what they need."""
