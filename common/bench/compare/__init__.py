"""Results beside each other: stage against stage, machine against machine, a class among themselves."""
