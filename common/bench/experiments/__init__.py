"""Measurements beside the benchmarks of the stages: kernels, transports, the worst client, soaks. Each is a command."""
