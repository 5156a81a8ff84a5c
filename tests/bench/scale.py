"""Time, memory and disk of `onnxlm quantize` on models of real shapes, phase by phase, against its own forecast.

    python tests/bench/scale.py llama-1b                   # the whole run
    python tests/bench/scale.py llama-8b --layers 1        # one layer, extrapolated to all
    python tests/bench/scale.py qwen3-30b-a3b --layers 1
    python tests/bench/scale.py llama-8b --layers 2 --method rtn

Checkpoints are random, in bfloat16, and written on the fly: noise has no quality, but time and memory are real. Of a
model with fewer layers, each phase's time and memory are extrapolated by how far they were from its forecast: what the
forecast says of all layers, times measured over foreseen. Memory is anonymous: files that the system caches are not
counted.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from tokenizers import Tokenizer, models

_LLAMA = {
    "model_type": "llama", "vocab_size": 128_256, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "hidden_act": "silu",
    "max_position_embeddings": 8192, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama-135m": _LLAMA | {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49_152, "tie_word_embeddings": True,
    },
    "llama-1b": _LLAMA | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
    },
    "llama-8b": _LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    },
    "qwen3-30b-a3b": _LLAMA | {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 151_936, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
    },
}  # fmt: skip
_POOL = 1 << 22  # random values that every tensor is cut from


def tensors(config: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Names and shapes of all weights."""
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    yield "model.norm.weight", [hidden]
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", [config["vocab_size"], hidden]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{layer}self_attn.{name}_proj.weight", [rows, hidden]
        yield f"{layer}self_attn.o_proj.weight", [hidden, queries]
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{name}.weight", [hidden]
        yield from _mlp(f"{layer}mlp.", config)
        if config["model_type"] == "qwen3_moe":
            yield f"{layer}self_attn.q_norm.weight", [head]
            yield f"{layer}self_attn.k_norm.weight", [head]


def _mlp(prefix: str, config: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    modules = [prefix]
    if experts := config.get("num_experts"):
        yield f"{prefix}gate.weight", [experts, hidden]
        inner = config["moe_intermediate_size"]
        modules = [f"{prefix}experts.{i}." for i in range(experts)]
    for module in modules:
        yield f"{module}gate_proj.weight", [inner, hidden]
        yield f"{module}up_proj.weight", [inner, hidden]
        yield f"{module}down_proj.weight", [hidden, inner]


def write_checkpoint(folder: Path, config: dict[str, Any], *, empty: bool = False) -> Path:
    """A Hugging Face folder; `empty` leaves a hole where the weights would be, which takes no disk."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).save(str(folder / "tokenizer.json"))
    header, position = {}, 0
    for name, shape in tensors(config):
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    pool = (rng.standard_normal(_POOL, np.float32) * np.float32(0.02)).view(np.uint32) >> 16
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        if empty:
            file.truncate(8 + len(text) + position)
            return folder
        for name, shape in tensors(config):
            _write(file, name, int(np.prod(shape)), pool.astype(np.uint16), rng)
    return folder


def _write(file: Any, name: str, count: int, pool: "np.ndarray[Any, Any]", rng: np.random.Generator) -> None:
    if "norm" in name:
        file.write(np.full(count, 0x3F80, np.uint16).data)  # ones
        return
    while count:
        part = np.roll(pool, int(rng.integers(len(pool))))[:count]
        file.write(part.data)
        count -= len(part)


@dataclass
class Seen:
    """What was seen of one phase."""

    seconds: float = 0.0
    memory: int = 0


def watch(command: list[str], folder: Path) -> tuple[dict[str, Seen], int, str]:
    """Run a command that prints its phases; seconds and peak memory of each, most bytes in `folder`, its last line."""
    phases: dict[str, Seen] = {}
    with tempfile.TemporaryFile("w+") as out, _process(command, out) as process:
        most, began, at, last = 0, time.monotonic(), 0.0, ""
        while process.poll() is None:
            time.sleep(0.1)
            memory, now = _anonymous(process.pid), time.monotonic()
            out.seek(0)
            names = [line[6:].strip() for line in out.read().splitlines() if line.startswith("phase ")]
            name = names[-1] if names else "starting"
            if name != last:
                _tell(last, phases.get(last))
                last = name
            seen = phases.setdefault(name, Seen())
            seen.seconds, seen.memory = seen.seconds + now - began - at, max(seen.memory, memory)
            at = now - began
            if int(at * 10) % 20 == 0:
                most = max(most, _bytes_in(folder))
        _tell(last, phases.get(last))
        out.seek(0)
        lines = out.read().splitlines()
    if process.returncode:
        raise SystemExit(f"the run failed with exit code {process.returncode}")
    return phases, most, lines[-1]


@contextmanager
def _process(command: list[str], out: IO[str]) -> "Iterator[subprocess.Popen[str]]":
    """A process that ends with this one, however that ends."""
    process = subprocess.Popen(command, stdout=out, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _tell(name: str, seen: Seen | None) -> None:
    """A phase has ended: a run that is cut has told of those before."""
    if seen:
        print(f"  {name}: {seen.seconds:.1f} s, {seen.memory >> 20} MiB", file=sys.stderr, flush=True)


def _anonymous(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def child(source: Path, target: Path, options: dict[str, Any]) -> None:
    """One run, in a process of its own: says each phase when it begins, in the end the forecast."""
    from quantizer.cli.source import float_bundle
    from quantizer.flow import quantize, work_beside
    from quantizer.presets import make_recipe

    told, known = [""], []

    def progress(phase: str, _done: int, _total: int) -> None:
        if phase != told[0]:
            told[0] = phase
            print("phase", phase, flush=True)

    bundle = float_bundle(source, work_beside(target), progress)
    print("phase preparing", flush=True)
    quantize(bundle, target, make_recipe(**options), progress=progress, on_forecast=known.append)
    print(json.dumps(known[0].as_data()))


def report(phases: dict[str, Seen], expected: dict[str, Any], full: dict[str, Any] | None) -> None:
    """One line a phase; `full` is the forecast of all layers."""
    of_all = {phase["name"]: phase for phase in (full or expected)["phases"]}
    print(f"{'phase':26}{'seconds':>9}{'foreseen':>10}{'MiB':>8}{'foreseen':>10}{'all layers, s':>15}{'MiB':>8}")
    total = {"seconds": 0.0, "foreseen": 0.0, "all": 0.0}
    for name, seen in phases.items():
        known = next((phase for phase in expected["phases"] if name.startswith(phase["name"])), None)
        total["seconds"] += seen.seconds
        if known is None:
            print(f"{name:26}{seen.seconds:9.1f}{'':10}{seen.memory >> 20:8}")
            total["all"] += seen.seconds
            continue
        every = of_all[known["name"]]
        seconds = every["seconds"] * seen.seconds / max(known["seconds"], 1e-3)
        memory = every["memory"] * seen.memory / max(known["memory"], 1)
        total["foreseen"], total["all"] = total["foreseen"] + known["seconds"], total["all"] + seconds
        print(
            f"{known['name']:26}{seen.seconds:9.1f}{known['seconds']:10.1f}{seen.memory >> 20:8}"
            f"{known['memory'] >> 20:10}{seconds:15.1f}{int(memory) >> 20:8}"
        )
    print(f"{'in all':26}{total['seconds']:9.1f}{total['foreseen']:10.1f}{'':18}{total['all']:15.1f}")


def main() -> None:
    """Parse the command line, write a checkpoint, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--preset", help="as of onnxlm quantize  [default: balanced]")
    parser.add_argument("--method", help="as of onnxlm quantize")
    parser.add_argument("--calibration-tokens", type=int, help="fewer make a quick trial, and no measurement")
    parser.add_argument("--calibration", help="as of onnxlm quantize: text that need not be written takes no time")
    parser.add_argument("--folder", type=Path, help="for all files; removed in the end  [default: a temporary one]")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(Path(chosen.child[0]), Path(chosen.child[1]), json.loads(chosen.child[2]))
        return
    names = ("preset", "method", "calibration_tokens", "calibration")
    options = {name: getattr(chosen, name) for name in names if getattr(chosen, name) is not None}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # files go away then, too
    folder = Path(tempfile.mkdtemp(prefix="onnxlm-scale-", dir=chosen.folder))
    try:
        measure(chosen.shape, chosen.layers, options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(shape: str, layers: int | None, options: dict[str, Any], folder: Path) -> None:
    """The whole run, or that of some layers; `options` as of `make_recipe`."""
    from quantizer.cli.forecast import forecast
    from quantizer.presets import make_recipe

    config = SHAPES[shape]
    started = time.monotonic()
    source = write_checkpoint(
        folder / "checkpoint", config | {"num_hidden_layers": layers or config["num_hidden_layers"]}
    )
    size = (source / "model.safetensors").stat().st_size
    print(f"{shape}: checkpoint of {size / 1e9:.2f} GB written in {time.monotonic() - started:.1f} s", flush=True)
    recipe, target = make_recipe(**options), folder / "out" / "q"
    target.parent.mkdir()
    full = None
    if layers and layers < config["num_hidden_layers"]:
        everything = write_checkpoint(folder / "all", config, empty=True)
        full = forecast(everything, target, recipe, None, None, None).as_data()
    expected = forecast(source, target, recipe, None, None, None).as_data()
    command = [sys.executable, __file__, shape, "--child", str(source), str(target), json.dumps(options)]
    phases, disk, _ = watch(command, target.parent)
    report(phases, expected, full)
    output = _bytes_in(target)
    print(f"disk at most {disk / 1e9:.2f} GB, of it {output / 1e9:.2f} GB for the bundle", end="; ")
    print(f"foreseen {expected['disk_bytes'] / 1e9:.2f} and {expected['output_bytes'] / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
