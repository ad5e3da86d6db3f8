# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Compare with ground truth
# `genie.load_truth` reads profiler traces, nccl-tests tables, NCCL logs and more; another
# recording is ground truth too. Here a degraded link is held against a healthy one.

# %%
from pathlib import Path

import genie

here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
trace = genie.load(here.parent / "workloads" / "demo")
cluster = genie.Cluster.local(2, 4)


def run(rate=None, latency_ns=2000):
    """Simulate with host 0's NIC at `rate` GB/s."""
    network = genie.Network(latency_ns=latency_ns)
    return genie.simulate(
        trace, cluster, network=network if rate is None else network.degrade(0, 0, rate)
    )


healthy, degraded = run(), run(0.5)
found = genie.compare(degraded, healthy)
print(found.summary())

# %% [markdown]
# Level 0 (messages) does not change: a slow link moves the same bytes. Levels 1 and 2 do.

# %%
genie.figure("errors", found)

# %% [markdown]
# **What to see.** Boxes above zero: collectives that cross the slow link take longer; the lower
# quartile stays at zero, because collectives inside a host do not notice.

# %%
genie.figure("path", {"degraded": degraded, "healthy": healthy})

# %% [markdown]
# **What to see.** The critical path of the degraded run is longer and mostly communication.

# %% [markdown]
# Level 3: does a fault slow one world as much as the other? Two networks stand for two worlds
# here; with GPUs, one side is a profile of the job under the same fault.

# %%
faults = {f"{rate:g} GB/s": (run(rate), run(rate, latency_ns=200_000)) for rate in (0.5, 1.0, 2.0)}
under_faults = genie.compare(healthy, run(latency_ns=200_000), faults=faults)
genie.figure("sensitivity", under_faults)

# %% [markdown]
# **What to see.** One line a fault, 1 is no slowdown. Dots together mean that the fault costs as
# much in both worlds; the order of the faults is the same where the rank correlation is 1.
