"""The farm's model: every token is drawn from softmax(theta / temperature), whatever stands before it.

Letters: V words of the vocabulary, C tokens of a completion.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Row = dict[str, Any]
Table = npt.NDArray[np.float64]


class Policy:
    """A trained table, the published one that samples are drawn from, and a gradient that waits for a step."""

    def __init__(self, vocab_size: int) -> None:
        self.theta: Table = np.zeros(vocab_size)
        self.published: Table = self.theta.copy()
        self.gradient_V: Table = np.zeros(vocab_size)
        self.version = 0

    def sample(self, request: Row) -> Row:
        """One completion, drawn from the request's seed alone."""
        logp_V = log_softmax(self.published, request["temperature"])
        drawn = np.random.default_rng(request["seed"]).random(request["max_tokens"])
        ids = np.searchsorted(np.cumsum(np.exp(logp_V)), drawn).clip(max=len(logp_V) - 1)
        ends = np.flatnonzero(np.isin(ids, request["stop_ids"]))
        ids = ids[: ends[0] + 1] if len(ends) else ids
        return {"ids": ids.tolist(), "logprobs": logp_V[ids].tolist()}

    def score(self, completions: list[list[int]], temperature: float) -> list[list[float]]:
        logp_V = log_softmax(self.theta, temperature)
        return [logp_V[ids].tolist() for ids in completions]

    def gradient(self, rows: list[Row], temperature: float, clip: tuple[float, float, float]) -> Row:
        """Add the rows' gradient of the clipped policy loss; each token weighs its row's `weight`."""
        logp_V = log_softmax(self.theta, temperature)
        low, high, dual = clip
        out = {"loss": 0.0, "clipped": 0, "deviation": 0.0, "ppo_kl": 0.0}
        for row in rows:
            ids = np.asarray(row["ids"])
            old_C = logp_V[ids] if row["old"] is None else np.asarray(row["old"])
            ratio_C = np.exp(logp_V[ids] - old_C)
            plain_C = -row["advantage"] * ratio_C
            loss_C = np.maximum(plain_C, -row["advantage"] * ratio_C.clip(1 - low, 1 + high))
            if row["advantage"] < 0:
                loss_C = np.minimum(loss_C, -row["advantage"] * dual)
            # A number that is not one must reach the gradient, so that the step sees it.
            clipped_C = (loss_C != plain_C) & ~np.isnan(plain_C)
            slope_C = np.where(clipped_C, 0.0, plain_C) * row["weight"] / temperature
            np.add.at(self.gradient_V, ids, slope_C)
            self.gradient_V -= slope_C.sum() * np.exp(logp_V)
            out["loss"] += float(loss_C.sum()) * row["weight"]
            out["clipped"] += int(clipped_C.sum())
            out["deviation"] = max(out["deviation"], float(np.abs(ratio_C - 1).max(initial=0.0)))
            out["ppo_kl"] += float((old_C - logp_V[ids]).sum())
        return out

    def step(self, lr: float, max_norm: float) -> Row:
        """Plain gradient descent, unless the gradient is not finite; it is gone either way."""
        norm = float(np.linalg.norm(self.gradient_V))
        before = self.theta
        if np.isfinite(norm):
            self.theta = before - lr * min(1.0, max_norm / max(norm, 1e-12)) * self.gradient_V
            self.version += 1
        self.gradient_V = np.zeros_like(before)
        return {"norm": norm, "changed": float((self.theta != before).mean()), "version": self.version}

    def publish(self) -> Row:
        self.published = self.theta.copy()
        return {"version": self.version}

    def save(self) -> Row:
        return {"theta": self.theta.tolist(), "version": self.version}

    def load(self, state: Row) -> Row:
        self.theta, self.version = np.asarray(state["theta"]), state["version"]
        return {"version": self.version}


def log_softmax(theta_V: Table, temperature: float) -> Table:
    scaled_V = theta_V / temperature
    scaled_V -= scaled_V.max()
    logp_V: Table = scaled_V - np.log(np.exp(scaled_V).sum())
    return logp_V
