"""`headrace simulate schedule`: scheduling and batching policies over traces of requests and base fees."""
