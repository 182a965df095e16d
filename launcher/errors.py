"""What the launcher reports to the person at the terminal: a code, a sentence with a way out, and facts."""

from typing import ClassVar

from pool.domain.errors import PoolError


class LauncherError(PoolError):
    """Expected failure; `message` says what, why and what next."""

    code: ClassVar[str] = "launcher_error"


class BadSetting(LauncherError):
    """A variable or an option holds something that cannot be used; the message names it."""

    code: ClassVar[str] = "bad_setting"
