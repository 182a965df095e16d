"""What the launcher reports to the person at the terminal: a code, a sentence with a way out, and facts."""


class LauncherError(Exception):
    """Expected failure; `message` says what, why and what next."""

    code = "launcher_error"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class BadSetting(LauncherError):
    """A variable or an option holds something that cannot be used; the message names it."""

    code = "bad_setting"
