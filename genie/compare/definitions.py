"""Every number of a comparison by name and in a sentence; docs/compare.md has the formulas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One printed number.

    Attributes:
        name: What reports and the documentation call it.
        text: What it means.
        keys: Its names in JSON.
    """

    name: str
    text: str
    keys: tuple[str, ...] = ()


METRICS: tuple[Metric, ...] = (
    Metric("pairs", "Operations of both sides that were matched.", ("pairs", "count")),
    # L0
    Metric(
        "messages equal",
        "L0: fraction of messages with equal bytes at the same place of their stream; a stream is "
        "one rank, peer, channel and direction, in posting order, of one iteration.",
        ("rate", "equal", "compared", "first_difference"),
    ),
    Metric(
        "streams equal",
        "L0: streams whose messages are all equal, in number, bytes and order.",
        ("streams", "equal_streams", "replay_only"),
    ),
    Metric(
        "bytes error",
        "L0: largest |replay / truth - 1| of the bytes of a rank and direction.",
        ("bytes_error",),
    ),
    # L1
    Metric(
        "time of a collective",
        "L1: from the last rank's start to the last rank's end, so that waiting for a late rank is "
        "not counted as network time; nccl-tests rows: the out-of-place time.",
    ),
    Metric("waiting", "Mean over ranks of how long each waited for the last one to start."),
    Metric("median error", "L1: median of replay / truth - 1; +10 % means that the replay is "
           "slower.", ("median_error",)),
    Metric("95 % interval", "L1: of the median error, percentile bootstrap of 1000 resamples with "
           "a fixed seed.", ("low", "high")),
    Metric("geomean ratio", "L1: geometric mean of replay / truth.", ("geomean_ratio",)),
    Metric("p99 |error|", "L1: 99th percentile of the errors' magnitudes.", ("p99_abs_error",)),
    Metric("worst error", "L1: the error of largest magnitude, with its sign.", ("worst_error",)),
    Metric("p99 ratio", "L1: 99th percentile of the replay's times / that of the truth's.",
           ("p99_ratio",)),
    Metric("mean |error|", "L1: arithmetic mean of the errors' magnitudes.", ("mean_abs_error",)),
    Metric("alignment", "L1: 1 - mean |error|, as SimAI reports it.", ("alignment",)),
    Metric("geometric mean |error|", "L1: as ASTRA-sim reports it; pairs without error are left "
           "out.", ("geomean_abs_error",)),
    Metric("bus bandwidth", "L1: size / time times nccl-tests' factor of the kind, GB/s."),
    # L2
    Metric("step", "L2: first start to last end of an iteration on its slowest rank; medians over "
           "iterations.", ("step_replay_ns", "step_truth_ns", "step_error")),
    Metric("compute", "L2: time in which a rank computes; the rank with most.",
           ("compute_replay_ns", "compute_truth_ns", "compute_error")),
    Metric("communication", "L2: time in which a rank communicates, waiting included.",
           ("communication_replay_ns", "communication_truth_ns", "communication_error")),
    Metric("exposed", "L2: communication time during which the rank does not compute.",
           ("exposed_replay_ns", "exposed_truth_ns", "exposed_error")),
    Metric("overlap", "L2: time during which a rank computes and communicates.",
           ("overlap_replay_ns", "overlap_truth_ns", "overlap_error")),
    Metric("run time", "L2: first start to last end of all measured iterations / their number.",
           ("runtime_replay_ns", "runtime_truth_ns", "runtime_error")),
    Metric("ATLAHS error", "L2: |replay / truth - 1| of the run time.", ("atlahs_error",)),
    Metric(
        "critical path",
        "L2: the chain that the end of the first measured iteration waited for, back to its start, "
        "read off times; its parts add up to the step.",
        ("critical_path_ns",),
    ),
    # L3
    Metric("slowdown", "L3: time with a fault / without it, of the step and of the collectives.",
           ("faults", "replay", "truth")),
    Metric("error of the slowdown", "L3: slowdown of the replay / of the truth - 1.", ("errors",)),
    Metric("rank correlation", "L3: Spearman's rho of the slowdowns over the faults.",
           ("rank_correlation",)),
    # Shape of traffic
    Metric("burst size", "Bytes that a NIC sends until it pauses for more than 100 us.",
           ("burst_bytes",)),
    Metric("gap between bursts", "How long a NIC pauses between two bursts.", ("gap_ns",)),
    Metric("flows at once", "Flows of a NIC with a message in flight when one of its messages "
           "starts; a flow is one rank, peer and channel.", ("concurrency",)),
    Metric("rate in 1 ms", "GB/s that a NIC sends in each ms of the run.", ("rate_1ms",)),
    Metric("rate in 100 us", "GB/s that a NIC sends in each 100 us.", ("rate_100us",)),
    Metric("KS", "Kolmogorov-Smirnov statistic of two distributions: largest distance of their "
           "cumulative shares.", ("ks",)),
    Metric("p", "p-value of the KS test: how likely equal distributions look at least this "
           "different.", ("p",)),
    Metric("Wasserstein / mean", "Area between the cumulative shares, divided by the truth's "
           "mean.", ("wasserstein",)),
    # The replay's own
    Metric("timer error", "Health: how late compute ended.",
           ("timer_error_p50_ns", "timer_error_p99_ns", "timer_error_max_ns")),
    Metric("poll gap", "Health: time between two polls of a busy worker.",
           ("poll_gap_p50_ns", "poll_gap_p99_ns", "poll_gap_max_ns")),
    Metric("clock bound", "Health: bound on the error of the clocks' correction, and what was "
           "corrected.", ("clock_bound_ns", "clock_offset_ns")),
    Metric(
        "CPU load",
        "Health: the worst worker's time, its CPU time, how long it waited for a CPU, and how "
        "busy its host and how stolen its CPU time was (0 to 1).",
        ("host_cpu_busy", "host_cpu_steal", "wall_ns", "cpu_user_ns", "cpu_system_ns",
         "cpu_wait_ns"),
    ),
)  # fmt: skip
