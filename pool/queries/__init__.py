"""Reads for pages, API and loops: plain dataclasses, a fixed number of SQL queries."""
