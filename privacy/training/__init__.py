"""The parts of record-level DP-SGD: secret batches, clipped gradients, noise, and the loop that joins them.

`privacy.mechanisms.dp_sgd` states the promise; here is how it is kept. Needs torch and Opacus.
"""
