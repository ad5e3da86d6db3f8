# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Figures for a paper
# Every figure is a function of runs and an `ax`; `genie figure all RUN RUN -o DIR` draws them all.

# %%
import tempfile
from pathlib import Path

import genie
from genie.compare.figures.catalogue import run_figure
from genie.compare.figures.style import save

here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
trace = genie.load(here.parent / "workloads" / "demo")
cluster = genie.Cluster.local(2, 4)
runs = {}
for name, network in (
    ("simulate", genie.Network()),
    ("degraded", genie.Network().degrade(0, 0, 1.0, at_ns=40_000_000)),
):
    recording = genie.simulate(trace, cluster, network=network, iterations=3)
    runs[name] = genie.compare(recording, recording).replay

# %%
figure = run_figure("runs", runs)
figure

# %% [markdown]
# **What to see.** Bandwidth run after run against the healthy simulation (dashed): where the link
# degrades, the bandwidth of the collectives that cross it falls (Figure 1 of the paper).

# %%
folder = Path(tempfile.mkdtemp(prefix="genie-figures-"))
save(figure, folder / "runs", "notebook 04", ("pdf", "png"))
sorted(path.name for path in folder.iterdir())

# %%
run_figure("matrix-host", runs)

# %% [markdown]
# **What to see.** Bytes between hosts: equal in both runs, because a slow link changes times only.
