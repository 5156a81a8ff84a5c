"""From a checkpoint to what an embedding model's or a reranker's bundle is, before any weight is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from models.decoder.sequence_output import Dense, Pooling, SequenceOutput
from models.decoder.sources import Source
from runtime.bundle.sequence_task import ScoreActivation, SequenceTask
from runtime.errors import CheckpointError, OptionError, UnsupportedError

from ..weights.plan import without_ignored
from ..weights.tying import EMBEDDING
from ..weights.tying import HEAD as LM_HEAD
from .heads import HEAD, answer_head, answer_tokens, labels_of, score_tensors, without_head
from .modules import MODULES, Modules, read_modules
from .pairs import chosen_template, template_of_chat

if TYPE_CHECKING:
    from models.decoder.description import Decoder
    from models.decoder.sources import Table

    from ..checkpoint import Checkpoint, TensorSource
    from ..options import ExportOptions

# Of config.json: what sentence-transformers, vLLM and trainers of classifiers write there, read here or by `heads`.
_OURS = ("sentence_transformers", "sbert_ce_default_activation_function", "matryoshka_dimensions", "is_matryoshka",
         "num_labels", "classifier_bias")  # fmt: skip
_ACTIVATIONS: Mapping[str, ScoreActivation] = {"Sigmoid": "sigmoid", "Identity": "identity", "Softmax": "softmax"}
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True)
class SequencePlan:
    """What will be exported: `output` of the graph, and `task` of the manifest."""

    decoder: "Decoder"
    table: "Table"
    tensors: "Mapping[str, TensorSource]"
    output: SequenceOutput
    task: SequenceTask
    answer_tokens: tuple[int, int | None] | None = None


def plan_sequence(checkpoint: "Checkpoint", options: "ExportOptions") -> SequencePlan:
    """Read what the checkpoint's files say, and complete it by the options.

    Raises:
        UnsupportedError: it attends in both directions, or says something that is not supported.
        OptionError: something that only an option can say is missing, or an option contradicts the files.
    """
    from models.families.registry import describe

    folder = checkpoint.path
    stated = cast("tuple[Pooling, ...]", (checkpoint.pooling,) if checkpoint.pooling else ())
    modules = read_modules(folder) if folder is not None and folder.is_dir() else Modules(pooling=stated)
    config = {key: value for key, value in checkpoint.config.items() if key not in _OURS}
    _require_causal(config, options.ignore_keys)
    decoder, table = describe(config, options.ignore_keys)
    tensors = without_ignored(checkpoint.tensors, options.ignore_tensors)
    names = table[LM_HEAD].tensors[0], table[EMBEDDING].tensors[0]
    if names[1] not in tensors and names[0] in tensors:
        raise CheckpointError(f"the checkpoint has no tensor {names[1]!r}; embeddings need the token embedding.")
    tokens = None
    if options.task == "embed":
        output, heads = _embedding(decoder, modules, options), dict(modules.dense_tensors)
    else:
        output, heads, tokens = _scores(checkpoint, decoder, tensors, names, modules, options)
    decoder, kept = without_head(decoder, tensors, names[0])
    if options.task == "score":
        kept = {name: it for name, it in kept.items() if name.removeprefix("model.") not in heads}
    rows = {f"{layer}.{part}": Source((f"{layer}.{part}",)) for layer in ("dense.{i}", HEAD) for part in _PARTS}
    task = _task(checkpoint, decoder, output, modules, options)
    return SequencePlan(decoder, {**table, **rows}, {**kept, **heads}, output, task, tokens)


_PARTS = ("weight", "bias")


def _require_causal(config: Mapping[str, Any], ignored: tuple[str, ...]) -> None:
    if config.get("is_causal") is False or config.get("use_bidirectional_attention"):
        raise UnsupportedError(
            "config.json: the model attends in both directions (is_causal, use_bidirectional_attention); embeddings "
            "and scores are exported of causal models."
        )
    if config.get("auto_map") and "auto_map" not in ignored:
        raise UnsupportedError(
            "config.json: auto_map: the model has code of its own, which may attend in both directions or pool in its "
            "own way, and code of a checkpoint is never run. Pass --ignore-key auto_map if it computes what its "
            "model_type says."
        )


def _embedding(decoder: "Decoder", modules: Modules, options: "ExportOptions") -> SequenceOutput:
    if modules.answer_tokens:
        raise UnsupportedError(f"{MODULES} describes a reranker (LogitScore): export it with --task score.")
    chosen = cast("tuple[Pooling, ...]", (options.pooling,) if options.pooling else ())
    if chosen and modules.pooling and chosen != modules.pooling:
        raise OptionError(
            f"pooling: {options.pooling} contradicts the checkpoint's own files, which say "
            f"{', '.join(modules.pooling)}. Leave --pooling out."
        )
    pooling = chosen or modules.pooling
    if not pooling:
        raise OptionError(
            f"the checkpoint does not say how to pool (no {MODULES} with a Pooling module, no pooling_type in a GGUF "
            "file). Say it by --pooling: lasttoken for most causal models, mean for some; the model's card tells."
        )
    width = len(pooling) * decoder.hidden_size
    for layer in modules.dense:
        if layer.in_features != width:
            raise CheckpointError(f"{layer.name} takes {layer.in_features} numbers, and gets {width}.")
        width = layer.out_features
    # Without files of its own a model's vectors are compared by their angle; with them it says so.
    return SequenceOutput("embeddings", pooling, modules.dense, modules.normalize if modules.found else True)


def _scores(
    checkpoint: "Checkpoint", decoder: "Decoder", tensors: "Mapping[str, TensorSource]", names: tuple[str, str],
    modules: Modules, options: "ExportOptions",
) -> "tuple[SequenceOutput, dict[str, TensorSource], tuple[int, int | None] | None]":  # fmt: skip
    if modules.pooling or modules.dense:
        where = MODULES if modules.found else "the file's pooling_type"
        raise UnsupportedError(f"{where} describes an embedding model: export it with --task embed.")
    heads = score_tensors(tensors)
    tokens = modules.answer_tokens
    if options.score_tokens:
        given = answer_tokens(options.score_tokens, checkpoint.tokenizer_files.get("tokenizer.json", b"{}"))
        if tokens not in (None, given) or heads:
            raise OptionError("score_tokens: the checkpoint itself says what is scored. Leave --score-tokens out.")
        tokens = given
    if tokens:
        heads = answer_head(decoder, tensors, names, tokens)
    elif not heads:
        raise OptionError(
            "the checkpoint has no classification head (score.weight) and does not say which token means yes. Name "
            "the tokens for yes and no, and how query and document become a text, as in: --score-tokens yes,no "
            "--pair-template qwen3-reranker"
        )
    rows = heads[f"{HEAD}.weight"].shape[0]
    layer = Dense(HEAD, decoder.hidden_size, rows, f"{HEAD}.bias" in heads)
    return SequenceOutput("scores", ("lasttoken",), (layer,)), heads, tokens


def _task(
    checkpoint: "Checkpoint", decoder: "Decoder", output: SequenceOutput, modules: Modules, options: "ExportOptions"
) -> SequenceTask:
    similarity = modules.similarity or "cosine"
    if similarity not in _SIMILARITIES:
        raise UnsupportedError(f"similarity_fn_name {similarity!r} is not supported; supported: {_SIMILARITIES}.")
    common: dict[str, Any] = {
        "width": output.width(decoder.hidden_size),
        "max_tokens": min(modules.max_tokens or decoder.context_length, decoder.context_length),
        "pooling": output.pooling,
    }
    if options.task == "embed":
        return SequenceTask(
            "embed", **common, normalized=output.normalize, sizes=_sizes(checkpoint.config, common["width"]),
            similarity=cast(Any, similarity), prompts=dict(modules.prompts), default_prompt=modules.default_prompt,
        )  # fmt: skip
    template, instruction = _pair(checkpoint, modules, options)
    labels = labels_of(checkpoint.config, common["width"])
    activation = _activation(checkpoint.config, modules, common["width"])
    return SequenceTask("score", **common, labels=labels, activation=activation, pair_template=template,
                        instruction=instruction)  # fmt: skip


def _sizes(config: Mapping[str, Any], width: int) -> tuple[int, ...] | None:
    """To which vectors may be cut, by the keys that vLLM reads: none named and true, or nothing said, means any."""
    named, cut = config.get("matryoshka_dimensions"), config.get("is_matryoshka")
    if cut not in (None, True, False):
        raise CheckpointError(f"config.json: is_matryoshka must be true or false, got {cut!r}.")
    if named is None:
        return (width,) if cut is False else None
    whole = isinstance(named, list) and all(type(size) is int and 1 <= size <= width for size in named)
    if not whole or not named or cut is False:
        raise CheckpointError(
            f"config.json: matryoshka_dimensions must be sizes from 1 to {width}, and is_matryoshka not false beside "
            f"them; got {named!r} and {cut!r}."
        )
    return tuple(sorted(set(named)))


def _pair(checkpoint: "Checkpoint", modules: Modules, options: "ExportOptions") -> tuple[str | None, str | None]:
    """The pair template, and the instruction that stands in it where a user gives none."""
    prompt = modules.prompts.get(modules.default_prompt) if modules.default_prompt else None
    if options.pair_template:
        template, usual = chosen_template(options.pair_template)
        return template, prompt or usual
    if modules.messages:
        return template_of_chat(checkpoint.tokenizer_files, prompt, modules.chat_variables), prompt
    if modules.answer_tokens or options.score_tokens:
        raise OptionError(
            "the checkpoint does not say how query and document become one text. Say it by --pair-template: "
            "qwen3-reranker, or a file with {query} and {document} in it."
        )
    return None, None


def _activation(config: Mapping[str, Any], modules: Modules, count: int) -> ScoreActivation:
    """What the files name; else a probability of one label, or of one among several, or of each of several."""
    own = (config.get("sentence_transformers") or {}).get("activation_fn")
    named = modules.activation or own or config.get("sbert_ce_default_activation_function")
    if named is not None:
        last = str(named).rpartition(".")[2]
        if last not in _ACTIVATIONS:
            raise UnsupportedError(f"activation_fn {named!r} is not supported; supported: {', '.join(_ACTIVATIONS)}.")
        return _ACTIVATIONS[last]
    kind = config.get("problem_type")
    if kind == "regression":
        return "identity"
    return "sigmoid" if count == 1 or kind == "multi_label_classification" else "softmax"


def generation_tensors(checkpoint: "Checkpoint") -> "tuple[Mapping[str, TensorSource], tuple[str, ...]]":
    """The tensors of a model that generates, and what a user should know.

    Raises:
        UnsupportedError: the checkpoint is a classifier's, whose logits of tokens mean nothing.
    """
    heads = score_tensors(checkpoint.tensors)
    kinds = [str(kind) for kind in checkpoint.config.get("architectures") or ()]
    if heads and any("ForSequenceClassification" in kind for kind in kinds):
        raise UnsupportedError(
            f"the checkpoint is a {kinds[0]} with a head for {heads[f'{HEAD}.weight'].shape[0]} labels (score.weight), "
            "and no language model. Export it with --task score."
        )
    tensors = {name: it for name, it in checkpoint.tensors.items() if name.removeprefix("model.") not in heads}
    folder = checkpoint.path
    described = folder is not None and (folder / MODULES).is_file()
    if not described and checkpoint.pooling is None:
        return tensors, ()
    where = folder / MODULES if folder is not None and described else f"pooling_type ({checkpoint.pooling}) of the file"
    told = f"{where} describes a model for embeddings or scores, and this bundle generates text."
    return tensors, (f"{told} Export it with --task embed or --task score for that.",)
