"""Read a config.json strictly: every key is understood, known to be irrelevant, or an error that names it."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from runtime.errors import CheckpointError, UnsupportedError

T = TypeVar("T")
_MISSING = object()
_EPSILONS = ("eps", "epsilon")  # how keys end that are added below a root

# Keys without influence on the logits of a causal forward pass: bookkeeping, training and generation settings.
IRRELEVANT = frozenset(
    """
    _attn_implementation _commit_hash _name_or_path activation_dropout add_cross_attention architectures
    attention_dropout attention_probs_dropout_prob attention_softmax_in_fp32 attn_implementation attn_pdrop auto_map
    bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward classifier_dropout
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dropout dtype early_stopping
    emb_pdrop embd_pdrop embed_dropout embedding_dropout encoder_no_repeat_ngram_size eos_token_id
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing
    hidden_dropout id2label init_std initializer_range is_decoder is_encoder_decoder is_llama_config label2id
    layerdrop length_penalty masked_softmax_fusion max_length max_sequence_length max_window_layers min_length
    model_type n_ctx no_repeat_ngram_size num_beam_groups num_beams num_return_sequences offset_alibi
    output_attentions output_hidden_states output_scores pad_token_id prefix pretraining_tp problem_type
    pruned_heads remove_invalid_values reorder_and_upcast_attn repetition_penalty resid_dropout resid_pdrop
    residual_dropout return_dict return_dict_in_generate rope_interleaved scale_attention_softmax_in_fp32
    sep_token_id skip_bias_add skip_bias_add_qkv slow_but_exact summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj suppress_tokens task_specific_params temperature
    tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache
    vocab_size_original
    aux_loss_alpha ep_size input_jitter_noise num_mtp_layers num_nextn_predict_layers output_router_logits
    router_aux_loss_coef seq_aux
    _attn_implementation_autoset _attn_implementation_internal _experts_implementation _flash_attn_2_enabled attn_impl
    flash_attn fused_bias_fc fused_mlp gradient_checkpointing_kwargs ignore_index is_reward_model
    keys_to_ignore_at_inference loss_type model_max_length num_labels torch_compile trainer_version trl_version
    use_fast_attn use_flash_attention use_flash_attn use_reentrant
    """.split()  # noqa: SIM905  # sixty quoted names would hide the list
)


class Config:
    """A config.json whose keys are taken one by one; `finish` refuses what nobody took."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self.values = dict(values)
        self.where = where
        self._left = set(values) - IRRELEVANT

    def take(self, key: str, kind: type[T], default: Any = _MISSING) -> T:
        """The value of `key` as `kind`; null counts as absent. Without a default, absence is an error."""
        self._left.discard(key)
        value = self.values.get(key)
        if value is None:
            if default is _MISSING:
                raise CheckpointError(f"{self.where}: {key} is missing; a {self._model()} config needs it.")
            return default  # type: ignore[no-any-return]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
            raise CheckpointError(f"{self.where}: {key} must be of type {kind.__name__}, got {value!r}.")
        if isinstance(value, float) and not (math.isfinite(value) and (value >= 0 or not key.endswith(_EPSILONS))):
            raise CheckpointError(f"{self.where}: {key} is {value!r}, with which nothing can be computed.")
        return value

    def positive(self, key: str, default: Any = _MISSING) -> int:
        """An integer of at least 1."""
        value = self.take(key, int, default)
        if value is not None and value < 1:
            raise CheckpointError(f"{self.where}: {key} must be at least 1, got {value}.")
        return value

    def choice(self, key: str, accepted: Mapping[str, T], default: str) -> T:
        """A string, looked up in the table of what is supported."""
        value = self.take(key, str, default)
        if value not in accepted:
            raise UnsupportedError(
                f"{self.where}: {key} {value!r} is not supported for {self._model()}; supported: {', '.join(accepted)}."
            )
        return accepted[value]

    def finish(self) -> None:
        """Refuse keys that were neither taken nor are known to be irrelevant."""
        unknown = sorted(key for key in self._left if self.values[key] is not None)
        if unknown:
            raise UnsupportedError(
                f"{self.where}: unknown key {unknown[0]!r} = {self.values[unknown[0]]!r} for {self._model()}. It may "
                f"change what the model computes: pass --ignore-key {unknown[0]} if it does not."
            )

    def _model(self) -> str:
        return f"model_type {self.values.get('model_type')!r}"
