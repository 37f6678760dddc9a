"""How a device and a server talk: messages, their bytes, and a channel over mutual TLS."""
