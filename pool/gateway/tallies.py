"""What became of each release's requests since this process began: counted at their ends, told with each beat.

Fixed limits of a rollout are judged by these where telemetry is out of reach.
"""


class Tally:
    """Of one release. `requests`: those whose last try was here. `errors`: those of them that the engine failed, cut
    streams included. `interrupted`: streams among them. `spilled_errors`: requests that it should have answered and
    another try, here or at another release, had to."""

    __slots__ = ("errors", "interrupted", "requests", "spilled_errors")

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.interrupted = 0
        self.spilled_errors = 0

    def tell(self) -> dict[str, int]:
        return {
            "requests": self.requests,
            "errors": self.errors,
            "interrupted": self.interrupted,
            "spilled_errors": self.spilled_errors,
        }


class Tallies:
    """By model and release. There are as many as the routing tables have named, which an operator's hands bound."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Tally] = {}

    def of(self, model: str, release: int) -> Tally:
        key = (model, release)
        tally = self._found.get(key)
        if tally is None:
            tally = self._found[key] = Tally()
        return tally

    def tell(self) -> dict[str, dict[str, dict[str, int]]]:
        """Model → release, as text → counts. JSON-able."""
        told: dict[str, dict[str, dict[str, int]]] = {}
        for (model, release), tally in self._found.items():
            told.setdefault(model, {})[str(release)] = tally.tell()
        return told
