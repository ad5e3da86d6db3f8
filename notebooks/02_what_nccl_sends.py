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
# # What NCCL sends
# For one call: which algorithm NCCL takes, how it cuts the buffer, and every message.

# %%
import genie

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
small = genie.Cluster.preset("h100x1", hosts=8)
genie.figure("schedule", kind="all_reduce", nbytes=4096, cluster=small)

# %% [markdown]
# **What to see.** The tree reduces upwards in the left half of the diagram and broadcasts
# downwards in the right half; one arrow is one message.

# %%
ring = genie.Nccl(env={"NCCL_ALGO": "Ring"})
genie.figure("schedule", kind="all_reduce", nbytes=4096, cluster=small, nccl=ring)

# %% [markdown]
# **What to see.** The ring goes round twice: the first seven steps reduce, the next seven gather.
# All ranks send at all times, but the last one is done later than in the tree.
