"""Memory that the operating system commits page by page when it is written, and takes back on request."""

import mmap
import sys

PAGE = mmap.PAGESIZE
_MAP_NORESERVE = 0x4000  # Linux; the mmap module names it only from Python 3.13 on


def pages_supported() -> bool:
    """Whether this system commits anonymous memory page by page and takes pages back on request."""
    return hasattr(mmap, "MADV_DONTNEED") and sys.platform != "win32"


def reserve_pages(size: int) -> mmap.mmap:
    """`size` bytes of zeros, none of them committed yet."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_NORESERVE if sys.platform == "linux" else 0)
    memory = mmap.mmap(-1, size, flags=flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page would commit 2 MiB for a ten-token prompt
    return memory


def whole_pages(start: int, stop: int) -> tuple[int, int]:
    """(start, size) of the whole pages within bytes `[start, stop)`; the size is 0 where there are none."""
    first, last = -(-start // PAGE) * PAGE, stop // PAGE * PAGE
    return first, max(0, last - first)
