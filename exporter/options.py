"""What a user can choose about an export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from models.targets.registry import PROVIDERS
from quantizer.algorithms.registry import DEFAULT, method_names
from runtime.errors import OptionError

from .verify.choice import Method

Layout = Literal["dense", "paged"]
OnnxRuntime = Literal["1.31", "1.32"]
Activations = Literal["float32", "float16", "bfloat16"]
Width = Literal["int4", "int8"]
Task = Literal["generate", "embed", "score"]
Pooling = Literal["lasttoken", "mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean"]


@dataclass(frozen=True)
class ExportOptions:
    """How to export.

    Args:
        target: the execution provider that the graphs are for.
        target_ort: the oldest ONNX Runtime that must run the graphs. From 1.32 on, prefill takes chunks of several
            prompts at once, which brings many short prompts to their first tokens sooner.
        dtype: activation and weight type; None is float32 for cpu and float16 for cuda.
        verify: "auto" compares with transformers where it is installed, else the two graphs with each other.
        overwrite: replace an existing bundle.
        ignore_keys: unknown config.json keys that are known to be irrelevant.
        ignore_tensors: patterns of names (`*` for any text) of tensors that are not of the model. One that names no
            tensor is refused.
        lora: folders of PEFT LoRA adapters, merged into the weights in this order.
        revision: branch, tag or commit of a hub id.
        quantize: pack weights while they are read: "int4" and "int8" are what `onnxlm quantize` does with
            `--preset fast` and `--bits 8`, without a float bundle in between.
        method: how `quantize` finds codes: one of the algorithms that need no text, such as "search" for the best grid
            of each group, or "rtn", several times as fast at some quality.
        lora_inputs: of a bundle, one over the same weights whose graphs take LoRA adapters as inputs.
        task: what the bundle does: "generate" text, "embed" texts as vectors, or "score" pairs or texts.
        pooling: of "embed", where the checkpoint has no files that say it, by sentence-transformers' name.
        score_tokens: of "score" without a classification head: the token that means yes, and the one that means no.
        pair_template: of "score": how query and document become one text: a known name, a file, or the text itself.
        requantize: turn the codes of a quantized checkpoint into floats instead of keeping them.
        kv: how keys and values lie on a GPU. "paged" writes a third graph, paged.onnx, over blocks that sequences take
            as they grow and share where they begin alike; "dense" keeps rows of one capacity for all.

    Raises:
        OptionError: a value that is not supported.
    """

    target: str = "cpu"
    target_ort: OnnxRuntime = "1.31"
    dtype: Activations | None = None
    verify: Method = "auto"
    overwrite: bool = False
    ignore_keys: tuple[str, ...] = ()
    ignore_tensors: tuple[str, ...] = ()
    lora: tuple[str | Path, ...] = ()
    revision: str | None = None
    quantize: Width | None = None
    method: str = DEFAULT
    requantize: bool = False
    lora_inputs: bool = False
    task: Task = "generate"
    pooling: Pooling | None = None
    score_tokens: tuple[str, ...] = ()
    pair_template: str | None = None
    kv: Layout = "dense"

    def __post_init__(self) -> None:
        _require_one_of("target", self.target, tuple(PROVIDERS))
        _require_one_of("target_ort", self.target_ort, get_args(OnnxRuntime))
        _require_one_of("dtype", self.dtype, (None, *get_args(Activations)))
        _require_one_of("verify", self.verify, get_args(Method))
        _require_one_of("quantize", self.quantize, (None, *get_args(Width)))
        _require_one_of("method", self.method, tuple(method_names(needs_text=False)))
        _require_one_of("kv", self.kv, get_args(Layout))
        if self.kv == "paged" and (not PROVIDERS[self.target].pages or self.task != "generate"):
            raise OptionError(
                "kv: paged needs PagedAttention, which ONNX Runtime has for GPUs only, and a model that generates. "
                "Add --target cuda; on the CPU the operating system pages memory without any option."
            )
        _require_one_of("task", self.task, get_args(Task))
        _require_one_of("pooling", self.pooling, (None, *get_args(Pooling)))
        self._check_task()
        if not PROVIDERS[self.target].runs_here and self.verify not in ("auto", "none"):
            raise OptionError(
                f"verify: {self.verify} needs a GPU, and graphs are written without one. Leave "
                "verify out; verify an export for the CPU, and retarget it (`onnxlm export BUNDLE --target cuda`)."
            )
        if self.quantize and self.verify == "transformers":
            raise OptionError(
                "verify: transformers has the weights before they are packed, so quantize differs from it by design. "
                "Leave verify out, and compare the bundle with a float one by `onnxlm eval`."
            )
        if isinstance(self.lora, str | Path):
            raise OptionError(f"lora: give a tuple of folders, such as ({str(self.lora)!r},).")

    def _check_task(self) -> None:
        for name, task in (("pooling", "embed"), ("score_tokens", "score"), ("pair_template", "score")):
            if getattr(self, name) and self.task != task:
                raise OptionError(f"{name} belongs to task {task!r}, and the task is {self.task!r}.")
        if self.task != "generate" and self.lora:
            raise OptionError(f"lora: merge the adapter first (PEFT's merge_and_unload), then export for {self.task}.")
        if self.task != "generate" and self.target_ort != "1.31":
            raise OptionError(f"target_ort: what it changes is the prefill of prompts, and {self.task} has none.")

    def require_no_choices(self) -> None:
        """Refuse whatever a bundle has decided already.

        Raises:
            OptionError: something is chosen besides `verify` and `overwrite`.
        """
        if self != ExportOptions(verify=self.verify, overwrite=self.overwrite):
            raise OptionError(
                "a bundle is taken as it is: its target, dtype and bits were chosen when it was written. "
                "Leave those options out, or export the checkpoint with them."
            )


def _require_one_of(name: str, value: str | None, accepted: tuple[str | None, ...]) -> None:
    if value not in accepted:
        raise OptionError(f"{name}: {value!r} is not supported; choose one of {', '.join(map(str, accepted))}.")
