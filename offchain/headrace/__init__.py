"""Headrace: AI inference, requested and paid on-chain."""

__version__ = "0.1.0"
