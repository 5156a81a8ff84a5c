"""Whose logits the graphs are compared with."""

import copy
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from runtime.errors import VerificationError

from ..checkpoint import Checkpoint

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Answer:
    """What a reference says of one sequence.

    Args:
        logits: `[tokens, V]`.
        samples: texts and their ids, without begin and end.
        independent: the reference opened the checkpoint by itself.
    """

    logits: Logits
    samples: tuple[tuple[str, list[int]], ...] = ()
    independent: bool = True


class Reference(Protocol):
    """Another implementation of the checkpoint."""

    @property
    def method(self) -> Literal["transformers", "module"]:
        """What the manifest calls it."""

    def answer(self, ids: npt.NDArray[np.int64]) -> Answer:
        """The logits of one sequence, and more.

        Raises:
            VerificationError: it cannot run.
        """


@dataclass(frozen=True)
class TransformersReference:
    """transformers' own model of a source on disk or on the hub, in a child: this process never loads torch.

    Args:
        source: path or hub id.
        lora: folders of adapters, merged in this order.
        revision: of a hub id.
    """

    source: str
    lora: tuple[str, ...] = ()
    revision: str | None = None
    method: Literal["transformers"] = "transformers"

    def answer(self, ids: npt.NDArray[np.int64]) -> Answer:
        """By `python -m exporter.verify.reference`."""
        request = {"source": self.source, "lora": self.lora, "revision": self.revision, "ids": ids.tolist()}
        with tempfile.TemporaryDirectory() as scratch:
            output = Path(scratch) / "logits.npy"
            command = [sys.executable, "-P", "-m", "exporter.verify.reference", json.dumps(request), str(output)]
            # Loading ahead in threads would hold experts twice, before and after they are stacked.
            environment = {**os.environ, "HF_DEACTIVATE_ASYNC_LOAD": "1"}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
            if done.returncode or not output.is_file():
                raise _cannot_run("transformers", (done.stderr.strip().splitlines() or ["no message"])[-1])
            facts = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
            samples = tuple((text, found) for text, found in facts["samples"])
            return Answer(np.load(output), samples, facts["independent"])


@dataclass(frozen=True)
class OpenedReference:
    """transformers' own model of what was opened, in this process: for live models in half precision.

    They are not compared with themselves: they round where the graphs do not, their rope frequencies included.
    """

    checkpoint: Checkpoint
    method: Literal["transformers"] = "transformers"

    def answer(self, ids: npt.NDArray[np.int64]) -> Answer:
        """By exporter.verify.reference."""
        from .reference import reference_logits

        try:
            logits: Logits = reference_logits(self.checkpoint, ids.tolist())
        except Exception as error:  # whatever transformers raises
            raise _cannot_run("transformers", str(error)) from error
        return Answer(logits, independent=False)


@dataclass(frozen=True)
class ModuleReference:
    """A live model itself, so that what it does beyond its config and weights (hooks, patches) is found out too."""

    module: Any
    method: Literal["module"] = "module"

    def answer(self, ids: npt.NDArray[np.int64]) -> Answer:
        """By its forward method; without dropout, on a copy where that would change the model."""
        import torch

        module = copy.deepcopy(self.module).eval() if self.module.training else self.module
        place = next(iter(module.parameters())).device
        try:
            with torch.inference_mode():
                output = module(torch.from_numpy(ids[None]).to(place))
        except Exception as error:  # whatever the user's model raises
            raise _cannot_run(type(module).__name__, str(error)) from error
        return Answer(getattr(output, "logits", output)[0].float().cpu().numpy())


def reference_of(source: Any, checkpoint: Checkpoint, lora: tuple[str | Path, ...]) -> Reference:
    """The reference of an opened source."""
    if not isinstance(source, str | Path):
        plain = not lora and all(tensor.dtype == "float32" for tensor in checkpoint.tensors.values())
        return ModuleReference(source) if plain else OpenedReference(checkpoint)
    revision = (
        None if Path(source).exists() else checkpoint.revision
    )  # of a hub id: what was opened, not what is newest
    return TransformersReference(str(source), tuple(map(str, lora)), revision)


def _cannot_run(who: str, why: str) -> VerificationError:
    return VerificationError(
        f"{who} could not run this checkpoint as a reference: {why}. "
        f"Pass --verify self-consistency to compare the graphs with each other instead."
    )
