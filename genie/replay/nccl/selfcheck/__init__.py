"""One check per golden file, each through GENIE's public functions.

Used by `genie selftest` and by the tests; a check counts what it compared and what was equal.
"""
