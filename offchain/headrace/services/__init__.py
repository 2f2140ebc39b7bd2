"""Async loops that read ports, ask core and write ports. Nothing is decided here that core could decide."""
