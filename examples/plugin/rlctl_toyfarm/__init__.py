"""An example backend of rlctl: a farm that trains one table of logits, reached over HTTP."""
