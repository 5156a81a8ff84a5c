"""What can be exported: each `model_type`, its GGUF names, where it runs, and how that was checked.

`python -m exporter.families` prints FAMILIES.md.
"""

import ast
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .family_chats import CHATS, Chat

# What the tests do with every family: tests/test_models/test_families.py, test_float16.py and test_kernels.py.
CPU, CUDA = ("float32", "float16"), ("float16", "bfloat16")
VERIFIED = {"cpu": "transformers", "cuda": "kernel table"}
NO_CHAT = Chat((), "–", "–", "–")

INTRODUCTION = """\
# Model families

What `onnxlm export` understands. `make families` writes this file, from the data that `onnxlm export --list` prints; a
test fails when it is old. How a family is added: [CONTRIBUTING.md](CONTRIBUTING.md).

- **model_type**: as in Hugging Face's `config.json`, with the file that describes it. A multimodal checkpoint exports
  its text model, whose `model_type` is in `text_config`.
- **GGUF**: the values of `general.architecture` that are read. For each, a tiny model is converted as llama.cpp's
  converter does it, and read back to the same tensors and config.
- **CPU**: `--target cpu`, in float32 or `--dtype float16`. *transformers*: logits of tiny random models with each of
  the family's features agree with transformers in eager mode: in float32 within 1e-4 of the largest logit, over
  prompts, 16 decode steps and ragged batches, on both sides of windows and rope switches; in float16 with the same
  best token at 256 positions, ties excepted, and no further from float32 than transformers in float16.
- **CUDA**: `--target cuda`, in float16 or `--dtype bfloat16`. *kernel table*: each node of both graphs has a CUDA
  kernel for its types, by what the GPU build of ONNX Runtime registers. The graphs are those of the CPU in another
  type; these tiny models have not been run on a GPU.
- **Tools**: how the family's usual chat templates write a call. **Forced tools**: `tool_choice` makes the model write
  that, with arguments of the tool's schema. **Reasoning**: the marks of thoughts that are told apart. For each, a test
  renders a reduced copy of the template, lets a model without any idea generate by the grammar, and parses it back.
  What a checkpoint's own template does, `onnxlm inspect` tells; – is a family of which no template is tested.
"""


@dataclass(frozen=True)
class Family:
    """One row of the table; `about` is what the family's file says of itself, `verified` how, by target."""

    model_type: str
    module: str
    gguf: tuple[str, ...]
    cpu: tuple[str, ...]
    cuda: tuple[str, ...]
    verified: dict[str, str]
    about: str
    chat: Chat


def list_families() -> list[Family]:
    """All families, in the order of models.families.registry."""
    from models.families.registry import FAMILIES

    from .checkpoint.gguf.registry import architectures

    return [
        Family(
            model_type,
            module,
            architectures(model_type),
            CPU,
            CUDA,
            VERIFIED,
            _about(f"models.families.{module}"),
            CHATS.get(model_type, NO_CHAT),
        )
        for model_type, module in FAMILIES.items()
    ]


def families_as_text() -> str:
    """The table for a terminal."""
    rows = [("model_type", "GGUF", "cpu (transformers)", "cuda (kernel table)", "tools", "reasoning")]
    rows += [
        (
            *(family.model_type, ", ".join(family.gguf) or "-", ", ".join(family.cpu), ", ".join(family.cuda)),
            *(family.chat.tools, family.chat.reasoning),
        )
        for family in list_families()
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def families_as_markdown() -> str:
    """FAMILIES.md."""
    lines = ["| model_type | GGUF | CPU | CUDA | Tools | Forced tools | Reasoning |", "|" + "---|" * 7]
    for family in sorted(list_families(), key=lambda family: family.model_type):
        name = f"[`{family.model_type}`](models/families/{family.module}.py)"
        gguf = ", ".join(f"`{architecture}`" for architecture in family.gguf) or "–"
        targets = [
            f"{', '.join(types)}: {family.verified[target]}"
            for target, types in (("cpu", family.cpu), ("cuda", family.cuda))
        ]
        chat = [_cell(family.chat.tools), family.chat.forced, _cell(family.chat.reasoning)]
        lines.append("| " + " | ".join([name, gguf, *targets, *chat]) + " |")
    return "\n".join([INTRODUCTION, *lines, ""])


def _cell(text: str) -> str:
    """Marks as code; several are parted by commas."""
    return text if text == "–" else ", ".join("`" + part.replace("|", "\\|") + "`" for part in text.split(", "))


def _about(module: str) -> str:
    """The first line of a module's docstring, without importing it."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


if __name__ == "__main__":
    print(families_as_markdown(), end="")  # noqa: T201  # the output is the file
