"""Tables of `peers.py` as a section of docs/performance.md, with the machine that they were measured on."""

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median

from runtime.host.machine import this_machine

Case = tuple[str, str, int]  # engine, phase, batch
Ratio = tuple[str, str, str, int, float]  # ours, peer, phase, batch, and how many times as fast


def write_section(
    page: Path,
    name: str,
    speeds: dict[Case, list[float]],
    ratios: Sequence[Ratio],
    rounds: int,
    read: Mapping[str, int],
) -> None:
    """Replace the section between the marks of `name`, or put it before the page's last heading."""
    begin, end = f"<!-- measured: {name} -->", f"<!-- end: {name} -->"
    section = f"{begin}\n{text(name, speeds, ratios, rounds, read)}\n{end}"
    old = page.read_text(encoding="utf-8") if page.exists() else "# Performance\n\n"
    if begin in old and end in old:
        head, _, rest = old.partition(begin)
        new = head + section + rest.partition(end)[2]
    else:
        head, mark, rest = old.rpartition("## What to do next")
        new = f"{head or rest}{section}\n\n{mark}{rest if head else ''}".rstrip() + "\n"
    page.write_text(new, encoding="utf-8")


def text(
    name: str, speeds: dict[Case, list[float]], ratios: Sequence[Ratio], rounds: int, read: Mapping[str, int]
) -> str:
    """Tokens per second by engine and case, the ratios of ours to each peer, and what decode of one reads."""
    machine = this_machine()
    cases = list(dict.fromkeys((phase, batch) for _, phase, batch in speeds))
    titles = [f"{phase} of {batch}" if phase.startswith("decode") else phase for phase, batch in cases]
    lines = [
        f"### {name}",
        "",
        f"{date.today():%Y-%m-%d}, {machine.processor}, {machine.cores} cores, {', '.join(machine.features)}, "
        f"{machine.read_bandwidth / 1e9:.0f} GB/s read. Tokens per second, medians of {rounds} interleaved rounds.",
        "",
        "| | " + " | ".join(titles) + " |",
        "|---" * (len(cases) + 1) + "|",
    ]
    for engine in dict.fromkeys(name for name, _, _ in speeds):
        figures = [speeds.get((engine, *case)) for case in cases]
        lines.append(f"| {engine} | " + " | ".join(f"{median(f):.0f}" if f else "" for f in figures) + " |")
    for engine, size in read.items():
        alone = speeds.get((engine, "decode", 1))
        speed = f", {size * median(alone) / 1e9:.1f} GB/s" if alone else ""
        lines.append(f"| {engine}: {size / 1e6:.0f} MB a token{speed} |" + " |" * len(cases))
    by_pair: dict[tuple[str, str], dict[tuple[str, int], float]] = {}
    for ours, peer, phase, batch, ratio in ratios:
        by_pair.setdefault((ours, peer), {})[phase, batch] = ratio
    for (ours, peer), found in by_pair.items():
        cells = [f"{found[case]:.2f}×" if case in found else "" for case in cases]
        lines.append(f"| {ours} : {peer} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
