# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Compare with ground truth
# `genie.load_truth` reads profiler traces, nccl-tests tables, NCCL logs and more; another
# recording is ground truth too. Here a degraded link is held against a healthy one.

# %%
from pathlib import Path

import genie
from genie.compare.figures.catalogue import errors_figure, run_figure

here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
trace = genie.load(here.parent / "workloads" / "demo")
cluster = genie.Cluster.local(2, 4)
healthy = genie.simulate(trace, cluster)
degraded = genie.simulate(trace, cluster, network=genie.Network().degrade(0, 0, 0.5))
found = genie.compare(degraded, healthy)
print(found.summary())

# %% [markdown]
# Level 0 (messages) does not change: a slow link moves the same bytes. Levels 1 and 2 do.

# %%
errors_figure(found)

# %% [markdown]
# **What to see.** Boxes above zero: collectives that cross the slow link take longer; the lower
# quartile stays at zero, because collectives inside a host do not notice.

# %%
run_figure("path", {"degraded": found.replay, "healthy": found.truth})

# %% [markdown]
# **What to see.** The critical path of the degraded run is longer and mostly communication.
