"""`rlctl serve`: one backend behind HTTP, for one session at a time."""
