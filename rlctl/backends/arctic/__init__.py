"""Snowflake's Arctic platform, driven through its own client: whichever of its releases is installed.

  register    announces the backend
  settings    `[remote_backend.arctic]`
  installed   which release is here, found without importing it
  refusals    what the platform would ignore, get wrong or break on, said before the run
  jobs        settings -> the configurations of its training, sampling and log-prob jobs
  connecting  the client of the release, built with every setting sent explicitly
  calls       a thread in which that client lives, so that nothing it does stalls the run
  turns       which of sampler and trainer sleeps, on devices that they share
  payload     rows -> the padded tensors of its batch, and its log-probs back
  texts       prompts as the texts it wants, and its completions back as token ids
  replies     its metrics -> LossStats and OptimStats
  backend     the verbs
  contract.toml  what the adapter calls, for `rlctl check-backend`

Facts about the platform's clients, wire and batches were read from release 0.1.2 on the package index and from
the development version of https://github.com/Snowflake-AI-Research/Arctic-Platform; no code of it is used.
"""

from __future__ import annotations

INSTALL = "pip install 'rlctl[arctic]' && pip install --no-deps arctic-platform"
"""Without its dependencies: the published package asks for transformers below 5, which rlctl cannot use."""
