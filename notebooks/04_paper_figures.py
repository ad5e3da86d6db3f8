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
# # Figures for a paper
# `genie figure all RUN RUN -o DIR` draws every figure; `genie.figure(name, runs)` one of them, in
# the width of one or both columns, and `genie.draw(name, run, ax)` into axes of your own.

# %%
import tempfile
from pathlib import Path

import genie

here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
trace = genie.load(here.parent / "workloads" / "demo")
cluster = genie.Cluster.local(2, 4)
runs = {
    name: genie.simulate(trace, cluster, network=network, iterations=3)
    for name, network in (
        ("simulate", genie.Network()),
        ("degraded", genie.Network().degrade(0, 0, 1.0, at_ns=40_000_000)),
    )
}

# %%
figure = genie.figure("runs", runs)
figure

# %% [markdown]
# **What to see.** Bandwidth run after run against the healthy simulation (dotted): where the link
# degrades, the bandwidth of the collectives that cross it falls (Figure 1 of the paper).

# %%
folder = Path(tempfile.mkdtemp(prefix="genie-figures-"))
[path.name for path in figure.save(folder / "runs", "notebook 04", formats=("pdf", "png"))]

# %%
genie.figure("nics", runs)

# %% [markdown]
# **What to see.** A row a NIC, brighter sends faster. After 40 ms both NICs are slow: NCCL's ring
# waits for its slowest link.

# %%
genie.figure("matrix-host", runs)

# %% [markdown]
# **What to see.** Bytes between hosts: equal in both runs, because a slow link changes times only.
