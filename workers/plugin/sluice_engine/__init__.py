"""What Sluice runs inside an engine's own interpreter. Knows nothing of the console or its packages."""
