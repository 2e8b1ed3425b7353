"""One file a command. At module level only typer: what a command needs is imported when it runs."""
