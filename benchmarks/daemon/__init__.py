"""The daemon as it is deployed: its own processes, mutual TLS, a durable store, and devices of the SDK."""
