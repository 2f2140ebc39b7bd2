"""Puts a relayer and a node together: the only package, besides the command line's, that names concrete classes."""

from headrace.bootstrap.node import run_node
from headrace.bootstrap.relayer import run_relayer

__all__ = ["run_node", "run_relayer"]
