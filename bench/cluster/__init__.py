"""Test clusters on one machine: network namespaces for hosts, shaped links between them."""
