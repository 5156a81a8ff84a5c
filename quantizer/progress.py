"""How long work says what it is doing."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # phase, work done, total work


def silent(doing: str, done: int, total: int) -> None:
    """Show nothing."""
