"""The receipt in a release's header, read once: the gateway and the desk behind it both look at it."""

from __future__ import annotations

from functools import lru_cache

from privacy.receipts import Receipt

receipt_in = lru_cache(maxsize=64)(Receipt.from_json)
"""The receipt on a line. The same bytes are always the same receipt; what is refused is not remembered."""
