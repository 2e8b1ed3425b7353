"""Text-to-SQL problems: read in BIRD's layout or made on the spot, and turned into prompts that hold the schema.

`bird.py` reads a data set's folder, `databases.py` and `questions.py` make a small one, `schema.py` describes a
database in words that fit a token budget, `prompt.py` puts the prompt together. Graded by `rewards/sql`.
"""
