"""An adapter and a checkpoint to the checkpoint that PEFT's own model computes; the factors are merged when read."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from exporter.tokenizer.folder import folder_tokenizer_files
from exporter.tokenizer.templates import TEMPLATE
from runtime.errors import CheckpointError, UnsupportedError

from ..checkpoint import Checkpoint, Renamed
from ..names import text_model_tensors
from ..pickled import convert_pickles
from ..safetensors.file import SafetensorsTensor, read_safetensors
from ..safetensors.folder import read_json
from .changes import AddedBias, LowRankChange, ReplacedRows
from .settings import REDUCED_BASE, AdapterSettings
from .tensors import ModuleTensors, modules_of
from .trained_on import other_base
from .unused import untrained_modules, unused_files

FILE, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
EMBEDDINGS = ("model.embed_tokens", "model.decoder.embed_tokens", "transformer.wte", "gpt_neox.embed_in",
              "transformer.word_embeddings")  # fmt: skip
HEADS = ("lm_head", "embed_out")
CONV1D = ("c_attn", "c_proj", "c_fc")  # GPT-2's linear layers are stored [in, out]


def merge_lora(checkpoint: Checkpoint, adapter: Path) -> Checkpoint:
    """The checkpoint with an adapter merged in.

    Args:
        checkpoint: the base model.
        adapter: folder with adapter_config.json and adapter_model.safetensors.

    Raises:
        CheckpointError: the adapter is for another model, or incomplete.
        UnsupportedError: something in the adapter cannot be used.
    """
    if not adapter.is_dir():
        raise CheckpointError(f"{adapter}: no folder. Give the folder that holds adapter_config.json and {FILE}.")
    settings = AdapterSettings(read_json(adapter / "adapter_config.json"), adapter)
    stored, scratch = _read(adapter)
    modules = {_target(name, checkpoint, adapter): (name, it) for name, it in modules_of(stored, adapter).items()}
    _require_complete(settings, dict(modules.values()))
    merged = _with_tokenizer(_Merge(checkpoint, settings, scratch).merged(modules), adapter)
    trained = {module for module, (_, it) in modules.items() if it.down is not None}
    linear = [name.removesuffix(".weight") for name in checkpoint.tensors if name.endswith(".weight")]
    told = (*unused_files(adapter, PICKLE if scratch else FILE), *untrained_modules(settings, linear, trained))
    told = (*other_base(settings, checkpoint), *told)
    return replace(merged, warnings=(*merged.warnings, *told))


class _Merge:
    """One adapter on its way into one checkpoint."""

    def __init__(self, checkpoint: Checkpoint, settings: AdapterSettings, scratch: object) -> None:
        self.checkpoint, self.settings, self.scratch = checkpoint, settings, scratch
        self.tensors = dict(checkpoint.tensors)
        self.config = dict(checkpoint.config)
        self.embedding = next((name for name in EMBEDDINGS if f"{name}.weight" in self.tensors), "")
        head = next((name for name in HEADS if f"{name}.weight" in self.tensors), None)
        self.tied = head is None or bool(self.config.get("tie_word_embeddings"))
        self.head = head or ("embed_out" if self.embedding.startswith("gpt_neox") else "lm_head")

    def merged(self, modules: Mapping[str, tuple[str, ModuleTensors]]) -> Checkpoint:
        """The checkpoint with all modules changed."""
        self._replace_bases(modules)
        if self.tied and any(self._unties(module, it) for module, (_, it) in modules.items()):
            self._untie()
        for module, (name, it) in modules.items():
            self._change(module, name, it)
        if self.embedding and self.embedding in modules:
            self.config["vocab_size"] = self.tensors[f"{self.embedding}.weight"].shape[0]
        return replace(
            self.checkpoint,
            tensors=self.tensors,
            config=self.config,
            name=f"{self.checkpoint.name} + {self.settings.where.resolve().name}",
            keep=(self.checkpoint.keep, self.scratch),
        )

    def _replace_bases(self, modules: Mapping[str, tuple[str, ModuleTensors]]) -> None:
        """Bases that the adapter brings along. A tied head has that of the embedding."""
        for module, (_, it) in modules.items():
            if it.base is not None:
                weight = f"{self.embedding if module == self.head and self.tied else module}.weight"
                self.tensors[weight] = Renamed(weight, it.base)

    def _unties(self, module: str, it: ModuleTensors) -> bool:
        """Whether PEFT's model has a head of its own then: it changes a module, not the tensor that two share."""
        if module == self.head:
            return True
        return module == self.embedding and (it.down is not None or self._is_saved(module, it))

    def _is_saved(self, module: str, it: ModuleTensors) -> bool:
        saved = self.settings.names("modules_to_save")
        return it.whole is not None and any(module.endswith(name) for name in saved)

    def _untie(self) -> None:
        weight = f"{self.head}.weight"
        self.tensors[weight] = Renamed(weight, self.tensors[f"{self.embedding}.weight"])
        self.config["tie_word_embeddings"], self.tied = False, False

    def _change(self, module: str, name: str, it: ModuleTensors) -> None:
        weight = f"{module}.weight"
        if it.whole is not None:
            self.tensors[weight] = Renamed(weight, it.whole)
        if it.bias is not None:
            self.tensors[self._bias(module)] = Renamed(f"{module}.bias", it.bias)
        if it.down is not None and it.up is not None:
            self._add_factors(module, name, it, it.down, it.up)
        if it.token_rows is not None:
            self._replace_rows(module, name, it)

    def _bias(self, module: str) -> str:
        if f"{module}.bias" not in self.tensors:
            raise UnsupportedError(f"{self.settings.where}: adds a bias to {module}, which has none.")
        return f"{module}.bias"

    def _add_factors(
        self, module: str, name: str, it: ModuleTensors, down: SafetensorsTensor, up: SafetensorsTensor
    ) -> None:
        scale, weight = self.settings.scale(name, down.shape[0]), f"{module}.weight"
        conv1d = self.config.get("model_type") == "gpt2" and module.rsplit(".", 1)[-1] in CONV1D
        init = self.settings.init if self.settings.init in REDUCED_BASE else None
        transposed = conv1d or "lora_embedding" in down.name
        self.tensors[weight] = LowRankChange(
            self.tensors[weight],
            down,
            up,
            scale,
            transposed,
            it.magnitude,
            None if "lora_embedding" in down.name else init,
        )
        if it.up_bias is not None:
            bias = self._bias(module)
            self.tensors[bias] = AddedBias(self.tensors[bias], it.up_bias, scale)

    def _replace_rows(self, module: str, name: str, it: ModuleTensors) -> None:
        assert it.token_rows is not None
        rows = self.settings.token_rows()
        found = next((ids for key, ids in rows.items() if name.endswith(key)), None)
        if found is None and name.endswith(self.embedding.rsplit(".", 1)[-1]):
            found = rows.get("embed_tokens")  # a plain list is for the input embedding, whatever its name
        if found is None:
            raise CheckpointError(f"{self.settings.where}: {it.token_rows.name!r} without its trainable_token_indices.")
        weight = f"{module}.weight"
        self.tensors[weight] = ReplacedRows(self.tensors[weight], it.token_rows, tuple(found))


def _read(adapter: Path) -> tuple[dict[str, SafetensorsTensor], object]:
    """The adapter's tensors, and what must live as long as they."""
    if (adapter / FILE).is_file():
        return read_safetensors(adapter / FILE), None
    if not (adapter / PICKLE).is_file():
        raise CheckpointError(f"{adapter / FILE}: missing. An adapter folder holds adapter_config.json and {FILE}.")
    scratch = convert_pickles([adapter / PICKLE])
    return read_safetensors(scratch.path / FILE), scratch


def _with_tokenizer(checkpoint: Checkpoint, adapter: Path) -> Checkpoint:
    """An adapter that brings a tokenizer along was trained with that one."""
    if not (adapter / "tokenizer.json").is_file():
        return checkpoint
    files, told = folder_tokenizer_files(adapter)
    if TEMPLATE not in files and TEMPLATE in checkpoint.tokenizer_files:
        files[TEMPLATE] = checkpoint.tokenizer_files[TEMPLATE]
    changed = [name for name, content in files.items() if checkpoint.tokenizer_files.get(name) != content]
    if not changed:
        return checkpoint
    note = f"{', '.join(changed)}: the adapter's own, {adapter}, in place of the base model's."
    return replace(
        checkpoint,
        tokenizer_files={**checkpoint.tokenizer_files, **files},
        warnings=(*checkpoint.warnings, *told, note),
    )


def _require_complete(settings: AdapterSettings, modules: Mapping[str, ModuleTensors]) -> None:
    """What the settings promise is there, and nothing that they do not.

    Raises:
        CheckpointError, UnsupportedError: the first that is not so.
    """
    if not any(it.down or it.up for it in modules.values()):
        raise CheckpointError(f"{settings.where}: holds no lora_A tensors.")
    for name, it in modules.items():
        _require_factors(settings, f"{settings.where}: {name}", it)
        _require_whole(settings, name, it)
    saved = [name for name, it in modules.items() if it.whole or it.bias]
    missing = [name for name in settings.names("modules_to_save") if not any(_ends(it, [name]) for it in saved)]
    if missing:
        raise CheckpointError(
            f"{settings.where}: modules_to_save names {missing[0]!r}, but the file has no such tensor."
        )
    rows = sum(it.token_rows is not None for it in modules.values())
    if rows != len(settings.token_rows()):
        raise CheckpointError(
            f"{settings.where}: trainable_token_indices names {', '.join(settings.token_rows()) or 'no module'}, and "
            f"the file has trained tokens of {rows} modules."
        )


def _require_factors(settings: AdapterSettings, where: str, it: ModuleTensors) -> None:
    dora, bias = settings.flag("use_dora"), settings.flag("lora_bias")
    if (it.down is None) != (it.up is None):
        raise CheckpointError(f"{where}: has {'lora_B without lora_A' if it.up else 'lora_A without lora_B'}.")
    if (it.magnitude is not None) != (dora and it.down is not None):
        found = "missing" if dora and it.down is not None else "there"
        raise CheckpointError(f"{where}: use_dora is {dora}, and a lora_magnitude_vector is {found}.")
    if it.up_bias is not None and (not bias or dora or it.down is None):
        raise UnsupportedError(f"{where}: a bias of lora_B is for lora_bias, without DoRA, in linear layers.")


def _require_whole(settings: AdapterSettings, name: str, it: ModuleTensors) -> None:
    kind = settings.values.get("bias", "none")
    if it.bias is not None and kind == "none" and not _ends(name, settings.names("modules_to_save")):
        raise UnsupportedError(f"{settings.where}: {name}: holds a bias, but bias is 'none': PEFT would leave it out.")
    if it.whole is not None and it.down is not None:
        raise UnsupportedError(f"{settings.where}: {name}: is saved whole, and has factors too.")


def _ends(name: str, ends: list[str]) -> bool:
    return any(name.endswith(end) for end in ends)


def _target(module: str, checkpoint: Checkpoint, adapter: Path) -> str:
    """The module of the checkpoint that a module of the adapter changes."""
    tied = f"{module}.weight" in ("lm_head.weight", "embed_out.weight")
    candidates = [f"{module}.weight", *text_model_tensors({f"{module}.weight": None}, checkpoint.config, nested=True)]
    found = next((name for name in candidates if name in checkpoint.tensors), candidates[0] if tied else None)
    if found is None:
        raise CheckpointError(
            f"{adapter}: changes {module!r}, which {checkpoint.name} does not have. Is it for another model?"
        )
    return found.removesuffix(".weight")
