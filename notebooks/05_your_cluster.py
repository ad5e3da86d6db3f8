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
# # Bring your own cluster
# A preset names a machine; an NCCL graph dump (`NCCL_GRAPH_DUMP_FILE`) or a log
# (`NCCL_DEBUG=INFO`) describes yours: `Cluster.from_nccl_graph`, `Cluster.from_nccl_log`.

# %%
import genie

cluster = genie.Cluster.preset("h100x8", hosts=4)
cluster

# %% [markdown]
# What this cluster would choose for growing sizes:

# %%
for power in range(10, 31, 4):
    one = genie.schedule("all_reduce", count=1 << (power - 2), dtype="float32", cluster=cluster)
    print(f"2^{power} B: {one.choice.algorithm}, {one.choice.protocol}, {one.choice.channels} ch")

# %% [markdown]
# NCCL settings of your job are settings here:

# %%
nccl = genie.Nccl(env={"NCCL_ALGO": "Tree"})
genie.schedule("all_reduce", count=1 << 20, dtype="float32", cluster=cluster, nccl=nccl).choice

# %% [markdown]
# A few ranks of it, drawn with those settings:

# %%
few = genie.Cluster.preset("h100x1", hosts=4)
genie.figure("schedule", kind="all_reduce", nbytes=1 << 16, cluster=few, nccl=nccl)

# %% [markdown]
# **What to see.** With `NCCL_ALGO=Tree` every message goes along the tree's edges, up and down.
