"""rlctl serve: lend a backend to runs on other machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.commands import options

if TYPE_CHECKING:  # loaded only by a command that runs
    from rlctl.backends.http.server.serving import Serving


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (serve.host).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one (serve.port).")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, PEM (serve.tls_cert).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM (serve.tls_key).")] = None,
    insecure_bind: Annotated[
        bool, typer.Option("--insecure-bind", help="Listen beyond this machine without TLS.")
    ] = False,
    backend: options.BackendName = None,
    config: options.Config = None,
    assignments: options.Set = None,
) -> None:
    """Host a backend over HTTP for `rlctl train --backend http`, one session at a time.

    Reads the settings, and the models that they lend (serve.models). Writes checkpoints on their way into a temporary
    folder, and what it does to stderr. The token comes from RLCTL_SERVE__TOKEN, or one is made up and printed once.
    Ends at Ctrl-C or SIGTERM, with 0.

    Example: rlctl serve --port 7077 --set serve.models='["embedded:*", "Qwen/Qwen3-0.6B"]'
    """
    # A connection that its client closes raises SIGPIPE too.
    options.outlive_closed_pipes()
    loaded = options.load_settings(
        preset=None,
        config=config,
        assignments=assignments,
        options={
            "backend": ("--backend", backend),
            "serve.host": ("--host", host),
            "serve.port": ("--port", port),
            "serve.tls_cert": ("--tls-cert", tls_cert and str(tls_cert)),
            "serve.tls_key": ("--tls-key", tls_key and str(tls_key)),
            "serve.insecure_bind": ("--insecure-bind", insecure_bind or None),
        },
    )
    import asyncio
    import logging

    from rlctl.backends.importing import import_foreign

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    run = import_foreign("rlctl.backends.http.server.serving:serve", needed_by="rlctl serve", install=INSTALL)
    asyncio.run(run(loaded.settings, tell=_tell))


INSTALL = "pip install 'rlctl[http]'"


def _tell(serving: Serving) -> None:
    from rlctl.display import say, tell

    say(f"listening on {serving.url}")
    if serving.made_up:
        tell(f"token (printed once): {serving.token}")
    tell(
        f"a client: RLCTL_REMOTE_BACKEND__HTTP__TOKEN=... rlctl train --backend http "
        f"--set remote_backend.http.url={serving.url}"
    )
