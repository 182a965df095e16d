"""The keeper of a host's engines: forks, adopts, reaps them. Standard library only; outlives the worker."""
