"""What makes a step fast on a GPU: recorded launches, a loop that overlaps host and device, fused kernels."""
