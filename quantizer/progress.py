"""How long work says what it is doing."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, how much there is


def silent(doing: str, done: int, total: int) -> None:
    """Show nothing."""
