"""What all stages share: the model, its loader, the sampler, the engine contract, and tools. README.md is the map."""
