"""A backend on another machine: `rlctl serve` hosts any other backend there, this one drives it over HTTP.

    client (here)                                        server (there)
    backend.py      the verbs, as a run calls them       server/app.py       routes, tokens, limits
    transport.py    one call: key, retries, beats        server/verbs.py     each key is carried out once
    files.py        checkpoints come and go as files     server/sessions.py  who holds the hosted backend, for how long

What travels is in messages.py (records of `types.py`, as MessagePack by codec.py), how a reply is cut into frames in
frames.py, and errors keep their kind (failures.py). Nothing is ever unpickled.
"""
