"""The scripts in `examples`, run as they are."""
