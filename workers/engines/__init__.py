"""The kinds of engines. Each satisfies pool.ports.EngineDriver; find_driver() is the only table of them."""
