"""What HolisticTraceAnalysis makes of a folder of traces, as JSON; run by a Python that has it."""

import json
import sys

from hta.trace_analysis import TraceAnalysis

analysis = TraceAnalysis(trace_dir=sys.argv[1])
kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)
ranks = sorted(analysis.t.get_all_traces())
queue = analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
out = {
    "ranks": sorted(int(rank) for rank in analysis.t.get_all_traces()),
    "kinds": dict(zip(kinds["kernel_type"], map(float, kinds["sum"]), strict=False)),
    "kernels": [
        [int(row["rank"]), row["name"], float(row["sum (us)"])] for _, row in kernels.iterrows()
    ],
    "overlap": {
        int(row["rank"]): float(row["comp_comm_overlap_pctg"]) for _, row in overlap.iterrows()
    },
    "launches": {int(rank): len(frame) for rank, frame in queue.items()},
}
json.dump(out, sys.stdout)
