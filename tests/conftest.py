"""Settings that every test shares; its place puts tests/ on the path (golden_data, reference)."""

import os
import signal

from hypothesis import HealthCheck, settings

# A shell's background job ignores SIGINT and its children inherit that; tests send it on purpose.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Timing of a shared machine is no property of the code. In CI the same examples every time.
settings.register_profile(
    "genie", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("genie-ci", settings.get_profile("genie"), derandomize=True)
settings.load_profile("genie-ci" if os.environ.get("CI") else "genie")
