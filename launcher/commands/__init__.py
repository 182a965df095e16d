"""One module per command of `./sluice`: its options, and `run`, which returns the exit status."""
