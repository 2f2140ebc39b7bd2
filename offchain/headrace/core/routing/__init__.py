"""Where requests can go, and what it costs. See the README beside this."""
