"""The live path: a feed per web process builds screens from PostgreSQL and sends browsers what changed."""
