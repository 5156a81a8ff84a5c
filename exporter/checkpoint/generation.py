"""generation_config.json, checked before any weight is read: a run must not fail for what nobody asked of it."""

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
}  # fmt: skip


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
    unused = [key for key, off in ELSEWHERE.items() if key in settings and settings[key] not in off]
    told = f"{path}: {', '.join(unused)}: settings of transformers' generate() that are not applied here."
    return settings, [told] if unused else []


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
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(f"{path}: {key} is {value!r}, which is no number. Correct it, or take it out.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _top_k(value: float) -> int | bool | None:
    """-1 and 0 keep all."""
    if value != int(value) or value < -1:
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
    "top_k": (_top_k, "an integer of at least 1, or 0 or -1 for all"),
    "top_p": (_within(0, 1, 1, above=True), "above 0, up to 1"),
    "min_p": (_within(0, 1, 0), "0 to 1"),
    "temperature": (_within(0, 100, None), "0 to 100"),
    "repetition_penalty": (_within(0.01, 100, 1), "0.01 to 100"),
}
