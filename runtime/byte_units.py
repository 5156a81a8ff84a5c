"""Bytes in words."""


def format_bytes(count: float) -> str:
    """A number of bytes with a binary unit.

    Example:
        >>> format_bytes(46080), format_bytes(512 << 20)
        ('45.0 KiB', '512.0 MiB')
    """
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"
