"""Reads large bodies and counts tokens in child processes, so that neither ever holds the event loop (FC-38)."""
