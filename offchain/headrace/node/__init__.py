"""The node daemon: its link to a relayer, and the executor that does each task once."""
