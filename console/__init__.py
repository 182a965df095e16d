"""The Django project: all that a person or a client of the API sees. Owns no tables."""
