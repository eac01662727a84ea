"""A measurement beside the benchmarks of the stages: stage 06 and its peers. It is a command."""
