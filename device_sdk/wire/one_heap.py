"""One heap for all threads of a process.

glibc gives each busy thread a heap of its own, and each keeps some of what was freed in it: gRPC has several threads,
so a transfer leaves four to ten megabytes behind that nobody uses. This is a setting of the whole process, so only a
program of our own asks for it; an app decides for itself (`MALLOC_ARENA_MAX=1` in its environment does the same).
"""

from __future__ import annotations

import ctypes

_ARENA_MAX = -8  # M_ARENA_MAX in glibc's malloc.h


def share_one_heap() -> bool:
    """Let threads that begin from now on share the first one's heap; False where the C library has no such setting."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_ARENA_MAX, 1))
    except (AttributeError, OSError, TypeError):
        return False
