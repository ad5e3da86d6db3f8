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
# # Quickstart: replay a trace and look at it
# A training step of a small transformer (8 ranks, tensor parallel 4 x data parallel 2) is bundled
# with GENIE. Two workers on this machine send what NCCL would send between two hosts.

# %%
from pathlib import Path

import genie

here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
trace = genie.load(here.parent / "workloads" / "demo")
trace

# %% [markdown]
# Before anything is sent, the plan says what would be: bytes per link.

# %%
cluster = genie.Cluster.local(2, 4)
genie.plan(trace, cluster)

# %% [markdown]
# The replay itself. In a notebook a display below the cell counts the nodes that are done while it
# runs; `progress` may also be any function of (done, total).

# %%
recording = genie.replay(trace, "local:2", iterations=40)
recording

# %%
recording.to_pandas().head()

# %%
genie.figure("timeline", recording)

# %% [markdown]
# **What to see.** A row a rank: grey computes, blue communicates, orange waits for another rank.
# The blue after the last grey is communication that nothing hides.

# %%
genie.figure("runs", recording)

# %% [markdown]
# **What to see.** The same collective in every iteration. Points that jump are this machine's own
# noise: the recording's `health` table says how late the workers were.
