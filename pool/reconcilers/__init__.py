"""Loops that make wishes true: claim, load facts, decide, apply, release. They run from PostgreSQL alone."""
