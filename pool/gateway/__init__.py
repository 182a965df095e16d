"""The data plane: an OpenAI-compatible gateway that starts and serves without Django, database or Redis."""
