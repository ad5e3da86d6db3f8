"""How a cluster becomes channels: machines, search rules, rings, trees, NICs, logs, dumps."""
