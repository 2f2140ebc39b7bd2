"""The pure core: no I/O, no clock, no randomness of its own; `now` and `rng` are arguments."""
