"""The progress bar of a batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..batch_file import BatchCounts


@contextmanager
def batch_progress() -> "Iterator[Callable[[BatchCounts], None]]":
    """A function to call with the counts; it draws a bar on stderr, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[failed]} failed"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("answering", total=None, failed=0)

        def show(counts: "BatchCounts") -> None:
            done = counts.kept + counts.answered + counts.failed
            bar.update(task, total=counts.total, completed=done, failed=counts.failed)

        yield show
