"""The files by which sentence-transformers describes a model, read strictly: what is there is used, or refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from models.decoder.sequence_output import Dense, DenseActivation, Pooling
from runtime.errors import CheckpointError, UnsupportedError

from ..checkpoint.checkpoint import TensorSource
from ..checkpoint.safetensors.folder import read_json
from ..tokenizer.files import optional_json, read_text

MODULES, MODEL_SETTINGS = "modules.json", "config_sentence_transformers.json"
TEXT_SETTINGS = ("sentence_bert_config.json", "sentence_xlm-roberta_config.json", "sentence_roberta_config.json")
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "Sigmoid": "sigmoid"}
_OUTPUT_NAMES = (None, "sentence_embedding")
# Of sentence_bert_config.json: what it may say without changing what is computed here.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "do_lower_case": (False, None), "unpad_inputs": (True, False, None), "query_length": (None,),
    "document_length": (None,), "query_expansion": (None,),
    "model_args": ({}, None), "tokenizer_args": ({}, None), "config_args": ({}, None),
    "module_output_name": ("token_embeddings", "causal_logits", "scores", None),
}  # fmt: skip


@dataclass(frozen=True)
class Modules:
    """What the files say; `None` and empty where they say nothing.

    Args:
        pooling: of the Pooling module.
        dense: Dense modules; `dense_tensors` are their weights by the names of the graph.
        normalize: there is a Normalize module.
        answer_tokens: ids of a LogitScore module: the one that means yes, and the one that means no or None.
        max_tokens: the longest text.
        prompts, default_prompt, similarity: of the model.
        activation: of a cross-encoder, as the class's own name in torch.
        messages: pairs go through the chat template, with these `chat_variables`.
        found: there is a modules.json.
    """

    pooling: tuple[Pooling, ...] = ()
    dense: tuple[Dense, ...] = ()
    dense_tensors: Mapping[str, TensorSource] = field(default_factory=dict)
    normalize: bool = False
    answer_tokens: tuple[int, int | None] | None = None
    max_tokens: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str | None = None
    activation: str | None = None
    messages: bool = False
    chat_variables: Mapping[str, Any] = field(default_factory=dict)
    found: bool = False


def read_modules(folder: Path) -> Modules:
    """Read modules.json and what it names.

    Raises:
        CheckpointError: a file is broken.
        UnsupportedError: a module or a setting that is not supported.
    """
    facts = _read_settings(folder)
    listed = _listed(folder)
    _require_order([kind for kind, _ in listed], folder)
    for place, (kind, path) in enumerate(listed):
        if kind == "Transformer":
            if place or path != folder:
                raise UnsupportedError(
                    f"{folder / MODULES}: the transformer lies in {path.name!r}. Export that folder, and give what the "
                    "other modules do by --pooling."
                )
            continue
        _READERS[kind](path, facts)
    facts["found"] = bool(listed)
    return Modules(**facts)


def _require_order(kinds: list[str], folder: Path) -> None:
    ranks = [("Transformer", *_READERS).index(kind) for kind in kinds]
    twice = [kind for kind in kinds if kind != "Dense" and kinds.count(kind) > 1]
    if ranks != sorted(ranks) or twice:
        raise UnsupportedError(
            f"{folder / MODULES}: the modules {', '.join(kinds)} are not supported in this order; supported: "
            "Transformer, Pooling, Dense (any number), Normalize; or Transformer, LogitScore."
        )


def _listed(folder: Path) -> list[tuple[str, Path]]:
    """The modules by the last part of their class's name, in their order."""
    if not (folder / MODULES).is_file():
        return []
    try:
        import json

        modules = json.loads(read_text(folder / MODULES))
        listed = [(str(one["type"]).rpartition(".")[2], str(one["path"])) for one in modules]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{folder / MODULES}: must be a list of modules with type and path ({error}).") from error
    for kind, path in listed:
        if kind not in ("Transformer", *_READERS):
            raise UnsupportedError(
                f"{folder / MODULES}: the module {kind} is not supported; supported: "
                f"{', '.join(('Transformer', *_READERS))}."
            )
        if path.startswith("/") or ".." in Path(path).parts:
            raise CheckpointError(f"{folder / MODULES}: {path!r} is not a folder of this one.")
    return [(kind, folder / path if path else folder) for kind, path in listed]


def _read_settings(folder: Path) -> dict[str, Any]:
    model = optional_json(folder / MODEL_SETTINGS)
    where = folder / MODEL_SETTINGS
    kind = model.get("model_type")
    if kind not in (None, "SentenceTransformer", "CrossEncoder"):
        raise UnsupportedError(f"{where}: model_type {kind!r} is not supported: one vector or score per text is.")
    _require_known(model, where, ("__version__", "prompts", "default_prompt_name", "similarity_fn_name",
                                  "model_type", "activation_fn"), {"truncate_dim": (None,)})  # fmt: skip
    prompts = model.get("prompts") or {}
    default = model.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{where}: prompts must be texts by name, got {prompts!r}.")
    if default is not None and default not in prompts:
        raise CheckpointError(f"{where}: default_prompt_name {default!r} is none of the prompts {sorted(prompts)}.")
    facts: dict[str, Any] = {"prompts": prompts, "default_prompt": default}
    facts |= {"similarity": model.get("similarity_fn_name"), "activation": _last(model.get("activation_fn"))}
    return facts | _text_settings(folder)


def _text_settings(folder: Path) -> dict[str, Any]:
    found = [folder / name for name in TEXT_SETTINGS if (folder / name).is_file()]
    if not found:
        return {}
    values = optional_json(found[0])
    known = ("max_seq_length", "transformer_task", "modality_config", "processing_kwargs")
    _require_known(values, found[0], known, _NEUTRAL)
    processing = values.get("processing_kwargs") or {}
    _require_known(processing, found[0], ("chat_template",), {"text": ({},), "common": ({},)})
    most = values.get("max_seq_length")
    if most is not None and (type(most) is not int or most < 1):
        raise CheckpointError(f"{found[0]}: max_seq_length must be a number of tokens, got {most!r}.")
    modality = values.get("modality_config") or {}
    others = sorted(set(modality) - {"text", "message"})
    if others:
        raise UnsupportedError(f"{found[0]}: modality_config has {others[0]!r}; only texts are read here.")
    variables = processing.get("chat_template") or {}
    return {"max_tokens": most, "messages": "message" in modality, "chat_variables": variables}


def _pooling(path: Path, facts: dict[str, Any]) -> None:
    where = path / "config.json"
    values = read_json(where)
    legacy = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    names = {f"pooling_mode_{legacy.get(kind, kind)}": kind for kind in get_args(Pooling)}
    _require_known(values, where, ("embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt",
                                   *names))  # fmt: skip
    stated = values.get("pooling_mode")
    kinds = [stated] if isinstance(stated, str) else list(stated or [])
    kinds = kinds or [kind for name, kind in names.items() if values.get(name)] or ["mean"]
    unknown = [kind for kind in kinds if kind not in get_args(Pooling)]
    if unknown:
        raise UnsupportedError(f"{where}: pooling {unknown[0]!r} is not supported; supported: {get_args(Pooling)}.")
    if values.get("include_prompt") is False and kinds != ["lasttoken"]:
        raise UnsupportedError(
            f"{where}: include_prompt false leaves the prompt's tokens out of {kinds[0]}; only lasttoken, which does "
            "not depend on it, is supported so."
        )
    facts["pooling"] = tuple(cast(Any, kinds))


def _dense(path: Path, facts: dict[str, Any]) -> None:
    from ..checkpoint.safetensors.file import read_safetensors

    where = path / "config.json"
    values = read_json(where)
    _require_known(values, where, ("in_features", "out_features", "bias", "activation_function"),
                   {"module_input_name": _OUTPUT_NAMES, "module_output_name": _OUTPUT_NAMES,
                    "use_residual": (False, None)})  # fmt: skip
    activation = _last(values.get("activation_function")) or "Tanh"
    if activation not in _ACTIVATIONS:
        raise UnsupportedError(f"{where}: activation {activation!r}; supported: {', '.join(_ACTIVATIONS)}.")
    if not (path / "model.safetensors").is_file():
        raise CheckpointError(f"{path}: no model.safetensors. Save the model again by sentence-transformers.")
    name = f"dense.{len(facts.get('dense', ()))}"
    kind = cast(DenseActivation, _ACTIVATIONS[activation])
    sizes = values.get("in_features"), values.get("out_features")
    if not all(type(size) is int and size > 0 for size in sizes):
        raise CheckpointError(f"{where}: in_features and out_features must be numbers, got {sizes}.")
    layer = Dense(name, *cast(tuple[int, int], sizes), values.get("bias", True), kind)
    tensors = read_safetensors(path / "model.safetensors")
    wanted = {"linear.weight": f"{name}.weight"} | ({"linear.bias": f"{name}.bias"} if layer.bias else {})
    if tensors.keys() != wanted.keys():
        raise CheckpointError(f"{path}: model.safetensors has {sorted(tensors)}, and should have {sorted(wanted)}.")
    facts["dense"] = (*facts.get("dense", ()), layer)
    facts["dense_tensors"] = {**facts.get("dense_tensors", {}), **{wanted[old]: tensors[old] for old in wanted}}


def _normalize(path: Path, facts: dict[str, Any]) -> None:
    values = optional_json(path / "config.json") if path != path.parent else {}
    _require_known(values, path / "config.json", (),
                   {"module_input_name": _OUTPUT_NAMES, "module_output_name": _OUTPUT_NAMES})  # fmt: skip
    facts["normalize"] = True


def _logit_score(path: Path, facts: dict[str, Any]) -> None:
    where = path / "config.json"
    values = read_json(where)
    _require_known(values, where, ("true_token_id", "false_token_id"), {"module_input_name": ("causal_logits", None)})
    yes, no = values.get("true_token_id"), values.get("false_token_id")
    if type(yes) is not int or not (no is None or type(no) is int):
        raise CheckpointError(f"{where}: true_token_id and false_token_id must be ids, got {yes!r} and {no!r}.")
    facts["answer_tokens"] = (yes, no)


_READERS: Mapping[str, Any] = {
    "Pooling": _pooling, "Dense": _dense, "Normalize": _normalize, "LogitScore": _logit_score,
}  # fmt: skip


def _require_known(
    values: Mapping[str, Any], where: Path, known: tuple[str, ...], neutral: Mapping[str, tuple[Any, ...]] | None = None
) -> None:
    for key, value in values.items():
        if key in known or (neutral and key in neutral and value in neutral[key]):
            continue
        accepted = f" other than {neutral[key][0]!r}" if neutral and key in neutral else ""
        raise UnsupportedError(
            f"{where}: {key} = {value!r}{accepted} is not supported; it may change the numbers. Take it out if not."
        )


def _last(name: object) -> str | None:
    """The class of a dotted path."""
    return name.rpartition(".")[2] if isinstance(name, str) else None
