"""The REST API: one module per kind of object, named as in the domain."""
