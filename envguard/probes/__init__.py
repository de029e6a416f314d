"""Probes: each reads one kind of fact from the machine and returns it as a value. None of them judges anything."""
