"""Where a server keeps what it must not forget."""
