"""The live view of a run on a terminal: what is known of the run (`state`), blocks of lines drawn from it, each in a
file of its own, a layout that fits them into any size (`view`), and the thread that draws (`reporter`).

Blocks are pure functions from the state to lines of rich Text, so that they can be tested without a terminal. No text
is ever parsed as markup. Loaded only where stdout is a terminal.
"""
