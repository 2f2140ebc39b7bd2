"""Simulators: the core's own decisions in virtual time, over traces of what happened elsewhere."""
