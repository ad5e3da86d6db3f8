"""Experiments: conditions x repetitions on a testbed, in random order, with everything kept."""
