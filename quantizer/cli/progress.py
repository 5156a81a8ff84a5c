"""Progress in the terminal, on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..progress import Progress


@contextmanager
def progress_bar(doing: str) -> Iterator[Progress]:
    """A bar that vanishes when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda doing, done, total: bar.update(task, description=doing, total=total, completed=done)
