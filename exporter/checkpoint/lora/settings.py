"""adapter_config.json, read strictly: every setting is used, known not to change the model, or an error."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import CheckpointError, UnsupportedError

USED = frozenset(
    """
    alpha_pattern bias ensure_weight_tying fan_in_fan_out init_lora_weights lora_alpha lora_bias modules_to_save
    peft_type r rank_pattern trainable_token_indices use_dora use_rslora
    """.split()  # noqa: SIM905
)
# How the adapter was trained; the tensors hold the result.
TRAINING = frozenset(
    """
    auto_mapping base_model_name_or_path corda_config eva_config exclude_modules inference_mode layers_pattern
    layers_to_transform loftq_config lora_dropout lora_ga_config megatron_config megatron_core peft_version
    qalora_group_size revision runtime_config target_modules task_type velora_config
    """.split()  # noqa: SIM905
)
NEUTRAL: tuple[Any, ...] = (None, False, [], {}, "")

# How the factors began. The first group leaves the base as it is, the second subtracts the first factors from it.
UNCHANGED_BASE = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
REDUCED_BASE = ("pissa", "olora")
BIAS = ("none", "all", "lora_only")


@dataclass(frozen=True)
class AdapterSettings:
    """The settings of a LoRA adapter; raises CheckpointError or UnsupportedError for those that cannot be used."""

    values: Mapping[str, Any]
    where: Path

    def __post_init__(self) -> None:
        if self.values.get("peft_type") != "LORA":
            raise UnsupportedError(f"{self.where}: peft_type {self.values.get('peft_type')!r}; supported is LORA.")
        for key, value in self.values.items():
            if key not in USED | TRAINING and value not in NEUTRAL:
                raise self._unsupported(key)
        for key in ("rank_pattern", "alpha_pattern"):
            if not isinstance(value := self.values.get(key), dict | None):
                raise CheckpointError(f"{self.where}: adapter_config.json: {key} must map names to numbers: {value!r}.")
        if self.values.get("bias", "none") not in BIAS:
            raise self._unsupported("bias")
        if self.init not in (*UNCHANGED_BASE, *REDUCED_BASE):
            raise UnsupportedError(
                f"{self.where}: adapter_config.json: init_lora_weights = {self.init!r}: the factors belong to a base "
                "whose weights were changed when training began, and the adapter does not say how. Convert it by "
                "PEFT's save_pretrained(path_initial_model_for_weight_conversion=...), or give the changed base "
                "and set init_lora_weights to true."
            )

    def _unsupported(self, key: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.where}: adapter_config.json: {key} = {self.values[key]!r} is not supported. Merge the adapter with "
            "PEFT (merge_and_unload) and export the merged model."
        )

    @property
    def init(self) -> Any:
        """How the factors began."""
        value = self.values.get("init_lora_weights", True)
        return value.lower() if isinstance(value, str) else value

    def flag(self, key: str) -> bool:
        """A setting that is on or off."""
        value = self.values.get(key, False)
        if value not in (True, False, None):
            raise CheckpointError(f"{self.where}: adapter_config.json: {key} must be true or false, got {value!r}.")
        return bool(value)

    def names(self, key: str) -> list[str]:
        """A list of module names, or an empty one."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise CheckpointError(f"{self.where}: adapter_config.json: {key} must be a list of names, got {value!r}.")
        return value

    def token_rows(self) -> dict[str, list[int]]:
        """Ids of the tokens that were trained alone, by the end of the module's name."""
        value = self.values.get("trainable_token_indices") or {}
        rows = {"embed_tokens": value} if isinstance(value, list) else value
        if not isinstance(rows, dict) or not all(_are_ids(ids) for ids in rows.values()):
            raise CheckpointError(
                f"{self.where}: adapter_config.json: trainable_token_indices must be ids, or ids by module: {value!r}."
            )
        return rows

    def scale(self, module: str, rank: int) -> float:
        """What the product of a module's factors is multiplied by.

        Raises:
            CheckpointError: the module's rank is not the stated one, or alpha is no number.
        """
        stated = self._by_pattern("rank_pattern", module, self.values.get("r", rank))
        if stated != rank:
            raise CheckpointError(
                f"{self.where}: {module} has factors of rank {rank}, adapter_config.json says {stated!r} (r, "
                "rank_pattern). Is the file of another adapter?"
            )
        alpha = self._by_pattern("alpha_pattern", module, self.values.get("lora_alpha"))
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
            raise CheckpointError(f"{self.where}: adapter_config.json: lora_alpha is {alpha!r}, not a number.")
        return alpha / (math.sqrt(rank) if self.flag("use_rslora") else rank)

    def _by_pattern(self, key: str, module: str, default: Any) -> Any:
        """The value of the first pattern that matches the whole name, or its end behind a dot."""
        for pattern, value in (self.values.get(key) or {}).items():
            try:
                if re.match(rf"(?:.*\.)?(?:{pattern})$", module):
                    return value
            except re.error as error:
                raise CheckpointError(
                    f"{self.where}: adapter_config.json: {key} {pattern!r} is no regular expression: {error}."
                ) from error
        return default


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(i) is int and i >= 0 for i in value)
