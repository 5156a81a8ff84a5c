"""generation_config.json, checked before any weight is read: a value that nobody asked for must not fail a run."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runtime.errors import CheckpointError

IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Settings of transformers' generate() that change what is generated and that no run here applies, with the values that
# mean "off".
ELSEWHERE: Mapping[str, tuple[Any, ...]] = {
    "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,), "bad_words_ids": ([],), "typical_p": (1,),
    "suppress_tokens": ([],), "begin_suppress_tokens": ([],), "forced_bos_token_id": (-1,), "sequence_bias": ({}, []),
    "forced_eos_token_id": (-1,), "num_beams": (1,), "penalty_alpha": (0,), "guidance_scale": (1, 0),
    "min_length": (0,), "min_new_tokens": (0,), "epsilon_cutoff": (0,), "eta_cutoff": (0,), "diversity_penalty": (0,),
    "top_h": (), "encoder_repetition_penalty": (1,), "exponential_decay_length_penalty": (),
    "watermarking_config": (), "stop_strings": ([],), "dola_layers": (), "length_penalty": (1, 0),
    "max_length": (20,), "max_new_tokens": (), "max_time": (), "constraints": ([],), "force_words_ids": ([],),
    "token_healing": (False,), "num_return_sequences": (1,), "renormalize_logits": (False,), "num_beam_groups": (1,),
    "remove_invalid_values": (False,), "early_stopping": (False,),
}  # fmt: skip
# Settings of transformers' generate() that decide how it works and what it returns, not what is generated.
NO_INFLUENCE = frozenset(
    """
    _from_model_config assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight
    assistant_lookbehind cache_config cache_implementation chat_format compile_config continuous_batching_config
    decoder_start_token_id disable_compile is_assistant low_memory max_cache_len max_matching_ngram_size
    num_assistant_tokens num_assistant_tokens_schedule output_attentions output_hidden_states output_logits
    output_scores prefill_chunk_size prompt_lookup_num_tokens return_dict_in_generate return_legacy_cache
    speculation_type target_lookbehind transformers_version use_cache use_mtp
    """.split()  # noqa: SIM905
)
_LARGEST = 2**31 - 1


def generation_settings(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The settings of a file, neutral values left out, and what a user should know; both empty without the file.

    Raises:
        CheckpointError: a value that no run would accept.
    """
    from .safetensors.folder import read_json

    if not path.is_file():
        return {}, []
    return checked_settings(read_json(path), path)


def checked_settings(values: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
    """The same for settings that were read already; `path` is for messages."""
    settings = {key: value for key, value in values.items() if value is not None}
    for key, (clean, accepted) in _SAMPLING.items():
        if key not in settings:
            continue
        number = settings.pop(key)
        if not _is_number(number) or (value := clean(number)) is False:
            raise CheckpointError(f"{path}: {key} is {number!r}; accepted: {accepted}. Correct it, or take it out.")
        if value is not None:
            settings[key] = value
    if not isinstance(settings.get("do_sample", False), bool):
        raise CheckpointError(f"{path}: do_sample is {settings['do_sample']!r}; accepted: true or false.")
    require_ids(settings, path)
    _require_finite(settings, path)
    return settings, _told(settings, path)


def _told(settings: Mapping[str, Any], path: Path) -> list[str]:
    """Settings that no run applies, unless they are off; and those that nobody knows."""
    unused = [key for key, off in ELSEWHERE.items() if key in settings and settings[key] not in off]
    unknown = [key for key in settings if key not in {*IDS, "do_sample", *_SAMPLING, *ELSEWHERE, *NO_INFLUENCE}]
    told = []
    if unused:
        told.append(f"{path}: {', '.join(unused)}: settings of transformers' generate() that are not applied here.")
    if unknown:
        told.append(f"{path}: {', '.join(unknown)}: not known, and not applied.")
    return told


def require_ids(values: Mapping[str, Any], path: Path) -> None:
    """Ids with a meaning are integers; -1 stands for none.

    Raises:
        CheckpointError: something else.
    """
    for key in IDS:
        ids = values.get(key)
        for i in ids if isinstance(ids, list) else [] if ids is None else [ids]:
            if type(i) is not int or i < -1:
                raise CheckpointError(
                    f"{path}: {key} is {i!r}, not the id of a token. Give its number, or take it out."
                )


def _require_finite(settings: Mapping[str, Any], path: Path) -> None:
    for key, value in settings.items():
        if not is_finite(value):
            raise CheckpointError(f"{path}: {key} is {value!r:.80}, which is no number. Correct it, or take it out.")


def is_finite(value: Any) -> bool:
    """Whether a JSON value holds neither NaN nor Infinity, at any depth."""
    if isinstance(value, dict | list):
        return all(map(is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _is_number(value: Any) -> bool:
    """Neither text nor flag, and of a size that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _top_k(value: float) -> int | bool | None:
    """-1 and 0 keep all."""
    if value != int(value) or not -1 <= value <= _LARGEST:
        return False
    return int(value) if value > 0 else None


def _within(
    low: float, high: float, off: float | None, *, above: bool = False
) -> Callable[[float], float | bool | None]:
    """The value itself, None where it is `off`, False where it is outside."""

    def clean(value: float) -> float | bool | None:
        inside = low < value <= high if above else low <= value <= high
        return None if value == off else value if inside else False

    return clean


_SAMPLING: Mapping[str, tuple[Callable[[float], Any], str]] = {
    "top_k": (_top_k, f"an integer from 1 to {_LARGEST}, or 0 or -1 for all"),
    "top_p": (_within(0, 1, 1, above=True), "above 0, up to 1"),
    "min_p": (_within(0, 1, 0), "0 to 1"),
    "temperature": (_within(0, 100, None), "0 to 100"),
    "repetition_penalty": (_within(0.01, 100, 1), "0.01 to 100"),
}
