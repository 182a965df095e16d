"""A module a screen: reads through one query, writes through one service call, renders on the server."""
