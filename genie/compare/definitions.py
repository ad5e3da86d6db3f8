"""What each number of a comparison means, in one sentence; docs/compare.md has the formulas."""

DEFINITIONS = {
    "time of a collective": (
        "From the last rank's start to the last rank's end, so that waiting for a late rank is "
        "not counted as network time; nccl-tests rows: the out-of-place time."
    ),
    "error": "replay / truth - 1, signed: +10 % means that the replay is slower.",
    "median error, 95 % interval": (
        "Median over pairs; the interval is a percentile bootstrap of 1000 resamples with a "
        "fixed seed."
    ),
    "geomean ratio": "Geometric mean of replay / truth over pairs.",
    "mean |error|": "Arithmetic mean of |error|; 1 minus it is what SimAI calls alignment.",
    "geometric mean |error|": "As ASTRA-sim 2 reports it; pairs without error are left out.",
    "exposed": "Communication time of a rank during which it does not compute.",
    "overlap": "Time during which a rank computes and communicates.",
    "step": "First start to last end of an iteration on its slowest rank; medians are compared.",
    "critical path": (
        "The chain that the end of the first measured iteration waited for, back to its start, "
        "read off times; its parts add up to the step."
    ),
    "L0: messages equal": (
        "Fraction of messages with equal bytes at the same place of their stream; a stream is "
        "one rank, peer, channel and direction, in posting order, of one iteration."
    ),
    "KS, Wasserstein": (
        "Kolmogorov-Smirnov statistic, and Wasserstein distance divided by the truth's mean."
    ),
    "bus bandwidth": "algbw (size / time) times nccl-tests' factor of the kind, GB/s.",
}
