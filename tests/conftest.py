"""Settings that hold for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# Workers share the cores: a library that starts a thread for each of them makes all of them slower.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")  # plots are drawn where there is no screen

# No deadline: a busy machine is not a bug. The blob lets a failure be repeated elsewhere.
settings.register_profile("covey", deadline=None, print_blob=True)
settings.load_profile("covey")
