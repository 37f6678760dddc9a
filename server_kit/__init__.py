"""The server: cohorts, rounds, and the daemon around them."""

__all__: list[str] = []
