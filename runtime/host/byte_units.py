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


_UNITS = {"": 1, "B": 1} | {
    f"{letter}{kind}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for kind, base in (("", 1024), ("iB", 1024), ("B", 1000))
}


def parse_bytes(text: str) -> int:
    """A number of bytes written with a unit; K, M, G and T alone are binary.

    Raises:
        ValueError: it is not of that form, or not positive.

    Example:
        >>> parse_bytes("40GiB"), parse_bytes("1.5 TB")
        (42949672960, 1500000000000)
    """
    number = text.strip().rstrip("BbIiKkMmGgTt ")
    unit = text.strip()[len(number) :].strip()
    known = {name.lower(): size for name, size in _UNITS.items()}
    try:
        count = int(float(number) * known[unit.lower()])
    except (ValueError, KeyError, OverflowError):
        count = 0
    if count < 1:
        raise ValueError(f"{text!r} is not a size like 512MiB, 40GiB or 1TB")
    return count
