"""What a run will need, from its settings and the model's config alone: tokens, FLOPs, time, and memory.

    work.py     tokens and FLOPs of a step          rates.py    measured rates -> seconds of a step
    model.py    what a config tells of a model      device.py   what a machine has
    memory.py   roles, phases, places; what the engine allocates
    fitting.py  the cheapest change that fits       plan.py     all of it         table.py   as a person reads it

What a backend beside these allocates, it says itself: the `memory` part of its registration names a `MemoryPlanner`.
"""
