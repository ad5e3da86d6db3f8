"""The order of grouped collectives and who shares a choice (spec 2.4 Groups, V6 and V7)."""

import math

CODES = ["broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce"]
TYPES = [
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
]
OPS = ["sum", "prod", "max", "min", "avg", "premulsum"]


def order(tasks, ranks, v):
    """Bundles of task positions, in decision order; each bundle shares one choice.

    tasks: (kind, count, dtype, op, element size).
    """
    keyed = []
    for i, (kind, count, dtype, op, size) in enumerate(tasks):
        # Gathers and broadcasts of anything are bytes.
        if kind in ("all_gather", "broadcast"):
            dtype, op = "int8", "sum"
        per = {"all_reduce": 2, "all_gather": ranks, "reduce_scatter": ranks}.get(kind, 1)
        keyed.append((i, (kind, op, dtype), count * size * per, count * size))
    return by_code(keyed, tasks) if v < (2, 22, 3) else by_traffic(keyed)


def by_code(keyed, tasks):
    def code(item):
        i, (kind, op, dtype), _, in_bytes = item
        count = in_bytes if kind in ("all_gather", "broadcast") else tasks[i][1]
        return CODES.index(kind), TYPES.index(dtype), OPS.index(op), count

    # Insertion: a new one goes before the first that is smaller.
    line = []
    for item in keyed:
        at = 0
        while at < len(line) and code(line[at]) >= code(item):
            at += 1
        line.insert(at, item)
    bundles = []
    for item in line:
        if bundles and bundles[-1][0][1] == item[1]:
            bundles[-1].append(item)
        else:
            bundles.append([item])
    return [[item[0] for item in bundle] for bundle in bundles]


def bin_of(traffic):
    """Bins of a quarter of a power of two, over whole KiB, up to 1 GiB."""
    kib = min(traffic, 1 << 30) // 1024
    if kib < 4:
        return (0, kib)
    e = int(math.log2(kib))
    return (e, (kib * 4 >> e) - 4)


def by_traffic(keyed):
    bins = {}
    for item in keyed:
        bins.setdefault(bin_of(item[2]), []).append(item)
    families = {}
    for key in sorted(bins, reverse=True):
        while bins[key]:
            item = bins[key].pop()
            families.setdefault(item[1], []).append(item)
    bundles = []
    for line in families.values():
        line.reverse()
        while line:
            bundle = [line.pop(0)]
            while line and line[0][2] < 4 * bundle[0][2]:
                bundle.append(line.pop(0))
            bundles.append([item[0] for item in bundle])
    return bundles
