"""Pure decisions: standard library only; clock, randomness and I/O are passed in."""
