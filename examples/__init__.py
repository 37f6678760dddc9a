"""Examples to run and to read; a package, so that `examples.name` means these and nobody else's."""
