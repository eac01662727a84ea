"""Measurements beside the benchmarks of the stages: a peer, and a soak. Each is a command."""
