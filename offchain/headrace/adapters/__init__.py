"""Adapters: each makes one port real."""
