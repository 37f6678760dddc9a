"""What we promise to keep fast, measured. A package by name: Opacus installs another one called `benchmarks`."""
