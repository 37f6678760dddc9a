"""Simulated training beside its peers, in one run; and what record-level DP costs."""
