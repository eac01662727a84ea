"""Every measurement of the course that needs a GPU, in one command: python3 -m common.bench.gpu --out DIR

A GPU is often lent for minutes, on a machine without a network. So this asks for nothing but torch, transformers,
triton, matplotlib and pytest, takes under nine minutes on an H200, and never loses what is done.
"""
