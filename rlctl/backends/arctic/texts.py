"""Prompts as the texts that the platform wants, and its completions as token ids.

The sampler takes strings only and tokenizes them itself, special tokens added as its tokenizer does. A prompt is
sent as a text that tokenizes to exactly its ids, which is tried out here, or not at all. Completions come back with
their ids; they are never re-encoded from text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlctl.errors import BackendError, ModelError
from rlctl.modelpath import load_errors, locate
from rlctl.types import Completion, JobSpec, Prompt, Sampling, TokenIds


class Texts:
    """The tokenizer that the server has: the model's own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @property
    def pad_id(self) -> int:
        """What fills a batch; the mask says that it is not there, so any id of the model will do."""
        for name in ("pad_token_id", "eos_token_id"):
            if isinstance(value := getattr(self._tokenizer, name), int):
                return value
        return 0

    def of(self, prompt: Prompt) -> str:
        """The text that the server tokenizes to the prompt's ids. Raises BackendError when there is none."""
        ids = prompt.token_ids.tolist()
        for skipped in range(min(2, len(ids))):  # a begin token that the server adds itself is left out
            text: str = self._tokenizer.decode(
                ids[skipped:], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            if self._tokenizer(text)["input_ids"] == ids:
                return text
        raise BackendError(
            f"a prompt of {len(ids)} tokens cannot be sent: the platform takes texts only, and the model's tokenizer "
            f"makes other ids of {self._tokenizer.decode(ids)[:80]!r}.",
            hint="is model.tokenizer the model's own? With data.prompt_format = chat the text must encode to itself.",
        )


def load_texts(model: str) -> Texts:
    """The model's tokenizer. Raises ModelError when it cannot be read."""
    from transformers import AutoTokenizer

    files = locate(model)
    try:
        return Texts(AutoTokenizer.from_pretrained(files.location, **files.arguments()))
    except load_errors() as error:
        raise ModelError(f"the tokenizer of {model} cannot be loaded: {str(error).splitlines()[0]}") from error


def sampling_params(sampling: Sampling, *, job: JobSpec, seed: int | None) -> dict[str, Any]:
    """vLLM's SamplingParams as a mapping."""
    params: dict[str, Any] = {
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
        "top_k": int(sampling.top_k),
        "min_p": float(sampling.min_p),
        "max_tokens": int(sampling.max_new_tokens),
        "stop_token_ids": list(job.end_token_ids),
        "logprobs": 0,  # of the chosen token alone
    }
    if seed is not None:
        params["seed"] = seed % 2**63  # a signed number there
    return params


def completion(item: Any, *, prompt: Prompt, job: JobSpec, check_prompt: bool) -> Completion:
    """One item of a generate reply. Raises BackendError for one that cannot be trained on."""
    if not isinstance(item, Mapping):
        raise BackendError(f"the platform's generate returned a {type(item).__name__} for a prompt, not a mapping.")
    if item.get("finish_reason") == "abort":
        raise BackendError("the platform's sampler aborted a completion.", hint="look at the server's log.")
    ids = _ids(item)
    told = item.get("prompt_len")
    if check_prompt and isinstance(told, int) and told != len(prompt.token_ids):
        raise BackendError(
            f"the server read a prompt of {len(prompt.token_ids)} tokens as {told}: its tokenizer is not the model's, "
            "or adds tokens of its own, so it answers another prompt than the one trained on.",
            hint="remote_backend.arctic.check_prompt_ids = false accepts that.",
        )
    ended = len(ids) > 0 and int(ids[-1]) in job.end_token_ids
    return Completion(ids, _logprobs(item, ids), "stop" if ended or item.get("finish_reason") == "stop" else "length")


def _ids(item: Mapping[str, Any]) -> TokenIds:
    ids = item.get("token_ids")
    if not isinstance(ids, Sequence) or isinstance(ids, str) or not all(isinstance(i, int) for i in ids):
        raise BackendError(
            f"the platform's generate returned no token ids (its keys: {sorted(map(str, item))}), only text. Ids "
            "encoded again from text can be others than those sampled, so they are not trained on.",
            hint="use a release whose generate returns token_ids.",
        )
    if not ids:
        raise BackendError("the platform's generate returned an empty completion.", hint="look at the server's log.")
    return np.asarray(ids, dtype=np.int32)


def _logprobs(item: Mapping[str, Any], ids: TokenIds) -> np.ndarray[Any, np.dtype[np.float32]]:
    entries = item.get("logprobs")
    if not isinstance(entries, Sequence) or len(entries) != len(ids):
        told = "none" if entries is None else f"{len(entries)}" if isinstance(entries, Sequence) else repr(entries)
        raise BackendError(f"the platform's generate returned {told} log-probs for {len(ids)} tokens.")
    return np.array([_chosen(entry, int(i)) for entry, i in zip(entries, ids, strict=True)], dtype=np.float32)


def _chosen(entry: Any, token: int) -> float:
    """The sampled token's log-prob; keys are numbers over Ray and texts over HTTP."""
    found = entry.get(token, entry.get(str(token))) if isinstance(entry, Mapping) else None
    value = found.get("logprob") if isinstance(found, Mapping) else found
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise BackendError(f"the platform's generate returned no log-prob of token {token}: {str(entry)[:80]}.")
    return float(value)
