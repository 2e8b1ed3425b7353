"""Others who get a run's metrics: TensorBoard, Weights & Biases, MLflow, trackio, or a class of the user's.

`base.py` is the contract, `table.py` the names, `loading.py` makes them and says before a run what they lack,
`parameters.py` is what they are told of the settings, `following.py` keeps each in a thread of its own.
"""
