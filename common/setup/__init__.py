"""What has to work before anything is installed: the environment, a kit of wheels, and a look at the machine.

These modules use the standard library alone. Only `pace`, which doctor starts in the environment, imports torch.
"""
