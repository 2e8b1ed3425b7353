"""`rlctl resume-test`: a run that is killed again and again must be, number for number, the run that was not."""
