# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # What NCCL sends
# For one call: which algorithm NCCL takes, how it cuts the buffer, and every message.

# %%
import genie
from genie.compare.figures.schedule import figure_schedule

cluster = genie.Cluster.preset("h100x8", hosts=2)
one = genie.schedule("all_reduce", count=1 << 20, dtype="float32", cluster=cluster)
one.choice

# %%
one.messages(0)[:8]

# %% [markdown]
# Every candidate that NCCL's tuner weighed, with the time it expected.

# %%
genie.tune("all_reduce", count=1 << 20, dtype="float32", cluster=cluster)

# %% [markdown]
# Small clusters can be drawn: left the topology of one channel, right its messages in time.

# %%
figure = figure_schedule("all_reduce", 4096, genie.Cluster.preset("h100x1", hosts=8))
figure

# %% [markdown]
# **What to see.** The tree reduces upwards in the left half of the diagram and broadcasts
# downwards in the right half; one arrow is one message.
