"""NCCL's choice and split, written once more and plainly from the spec's text.

Nothing here is shared with the package: a cluster is a dict, a release a tuple, numbers are
walked step by step. Sections are those of spec/nccl-wire-schedule.md, "V" of nccl-versions.md.
"""

import math
import struct

TREE, RING, NVLS, NVLS_TREE, PAT = "tree", "ring", "nvls", "nvls_tree", "pat"
ALGORITHMS = [TREE, RING, NVLS, NVLS_TREE, PAT]  # order decides ties
PROTOCOLS = ["ll", "ll128", "simple"]


def single(x):
    """A C float."""
    return struct.unpack("f", struct.pack("f", x))[0]


def generation(sm, v):
    if sm >= 100 and v >= (2, 25, 1):
        return 3
    return 2 if sm >= 90 else 1 if sm >= 80 else 0


def steps_of(kind, ranks):
    return {"all_reduce": 2 * ranks - 2, "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(
        kind, ranks
    )


def amd(c, v):
    return c["cpu"] == "amd" or (c["cpu"] == "mixed" and v >= (2, 24, 3))


def kernel_exists(kind, algorithm, protocol, c, v):
    if algorithm == RING:
        return True
    if algorithm == TREE:
        return kind == "all_reduce"
    if protocol != "simple":
        return False
    if algorithm == PAT:
        return v >= (2, 23, 4) and kind in ("all_gather", "reduce_scatter")
    if not c["nvls_channels"] or kind in ("broadcast", "reduce"):
        return False
    if algorithm == NVLS:
        return c["hosts"] == 1
    return c["hosts"] > 1 and kind == "all_reduce"


# 2.1, bandwidth ---------------------------------------------------------------


def bandwidth(kind, algorithm, protocol, c, v):
    hosts, ranks, gen = c["hosts"], c["ranks"], generation(c["sm"], v)
    column = 0 if hosts == 1 else 1 if hosts == 2 else 2
    graph = c[{RING: "ring", NVLS: "nvls", NVLS_TREE: "nvls"}.get(algorithm, "tree")]
    n = graph["n"]
    speed = graph["intra"] if hosts <= 2 else graph["inter"]
    bus = single(n * single(speed))
    ll = [[39, 39, 20.4], [87.7, 22.5, 19], [141, 45, 35], [282, 90, 70]]
    if v < (2, 25, 1):
        ll[3] = ll[2]
    if v < (2, 21, 5):
        ll[2] = ll[3] = ll[1]
    ll_max = ll[gen if hosts == 1 else 1 if amd(c, v) else 0][column]
    ratio = single(ranks / steps_of(kind, ranks))
    if algorithm == RING:
        if protocol == "ll":
            factor = 0.5
            if v < (2, 21, 5):
                factor = 1 / 3 if hosts == 1 and kind not in ("all_reduce", "reduce") else 1 / 4
            bus = single(min(ll_max, bus * factor))
        if protocol == "ll128":
            factor = 0.7 if v < (2, 23, 4) and ranks == hosts else 0.92
            blackwell = [40, 40, 40]
            if v < (2, 29, 7):
                blackwell = [34.5, 34.6, 34.5]
            if v < (2, 29, 2):
                blackwell = [73.4, 34.6, 73.4]
            if v < (2, 28, 7):
                blackwell = [73.4] * 3
            bus = single(
                min(bus * factor, n * [[20] * 3, [20] * 3, [36.7] * 3, blackwell][gen][column])
            )
        return single(bus * ratio)
    if algorithm == TREE:
        top = [[26.5, 18.5, 10], [24, 23.6, 17.8], [38.7, 41.4, 36]]
        top.append([70, 42.8, 24] if v >= (2, 28, 3) else [77.4, 82.8, 72])
        bus = single(min(bus * 0.92, n * top[gen][column]))
        if protocol == "ll":
            bus = single(min(bus / 3.8, ll_max))
        if protocol == "ll128":
            most = [[20] * 3, [20] * 3, [36.7, 36.7, 29]]
            most.append([55.6, 31.67, 20] if v >= (2, 28, 3) else [73.4, 73.4, 58])
            bus = single(min(bus * (7 / 9 if hosts == 1 else 120 / 128), n * most[gen][column]))
        if graph["pattern"] == 3:
            bus = single(bus * 0.85)
        return single(bus * 0.5)
    if algorithm == PAT:
        return single(bus * (0.75 if v >= (2, 24, 3) else 0.85))
    gather = kind in ("all_gather", "reduce_scatter")
    local = ranks / hosts
    inside, outside = graph["intra"], graph["inter"]
    if v < (2, 28, 3):
        if algorithm == NVLS_TREE:
            outside = outside if hosts <= 2 else outside / 2
        elif gather and v >= (2, 27, 3):
            inside, outside = single(inside * (local - 1) / local), single(outside * 0.9)
        bus = single(n * min(inside, outside))
        return bus if gather else single(bus * single(5 / 6))
    if n < 2:
        return 0
    inside = single(inside * (0.74 if gen == 3 else 0.85) * (n - 1) / n)
    inside = single(inside * (local - 1) / local) if gather else single(2 * inside)
    limits = [inside, outside]
    if algorithm == NVLS_TREE:
        far = 80 if v >= (2, 30, 3) else 43.8 if v >= (2, 28, 9) else 43.1
        cap = [[26.5, 18.5, 10], [24, 23.6, 17.8], [0, 57.7, 45.5], [0, 96, far]]
        limits = [inside, outside * (2 if hosts <= 2 else 1), single(cap[gen][column])]
    bus = single(n * min(limits))
    return bus if gather else single(bus * ratio)


# 2.1, latency -----------------------------------------------------------------


def latency(kind, algorithm, protocol, c, v, env):
    hosts, ranks, p = c["hosts"], c["ranks"], PROTOCOLS.index(protocol)
    old_tree = v < (2, 23, 4)
    base = {
        TREE: [6.8, 14, 0 if old_tree else 8.4],
        RING: [6.6, 14, 8.4],
        PAT: [8, 8, 8],
    }.get(algorithm, [0, 0, 0])[p]
    nvls = 23 if v < (2, 21, 5) else 25
    table = {
        TREE: ([0.6, 1.25, 4], [1, 1.9, 4], [5, 8.5, 14]),
        RING: ([0.6, 1.9, 3.4], [1, 2.5, 5.7], [2.7, 4, 14]),
        NVLS: ([0, 0, nvls], [0, 0, 0], [0, 0, 18]),
        NVLS_TREE: ([0, 0, nvls], [0, 0, 0], [0, 0, 20.9 if v >= (2, 28, 9) else 14]),
        PAT: ([0, 0, 4], [0, 0, 4], [0, 0, 14]),
    }
    if old_tree:
        table[TREE] = ([0.6, 1.25, 28], [1, 1.9, 28], [5, 8.5, 28])
    graph = c[{RING: "ring", NVLS: "nvls", NVLS_TREE: "nvls"}.get(algorithm, "tree")]
    link = 0 if graph["type_intra"] == 1 else 1
    inside = single(table[algorithm][link][p])
    own = TREE if ranks == hosts and not old_tree else algorithm
    outside = single(table[own][2][p])
    outside = single(outside + graph["latency"])
    if protocol == "simple":
        outside = single(outside + graph["latency"])
    start = single(base)
    if algorithm == RING and kind in ("broadcast", "reduce"):
        if graph["same_channels"]:
            return single(start + single(table[RING][2 if hosts > 1 else link][p]))
        hop = table[TREE if protocol == "simple" else RING][2 if hosts > 1 else link][p]
        return single(start + ranks * single(hop))
    if algorithm == RING:
        overhead = 0
        if hosts > 1:
            overhead = 2.0 if amd(c, v) else 1.0
            if "NCCL_NET_OVERHEAD" in env:
                overhead = single(int(env["NCCL_NET_OVERHEAD"]) * 0.001)
            if protocol == "simple":
                overhead = single(3 * overhead)
        between = 0
        if hosts > 1:
            between = hosts - 1
            if kind == "all_reduce":
                between = 2 * hosts if old_tree else 2 * (hosts - 1)
        rest = steps_of(kind, ranks) - between
        return single(
            start + single(single(rest * max(inside, overhead)) + single(between * outside))
        )
    depth = int(math.log2(hosts))
    if algorithm == TREE:
        return single(
            start + 2 * single(single((ranks // hosts - 1) * inside) + single(depth * outside))
        )
    if algorithm == PAT:
        return single(start + (depth * (outside / 3.5) + ranks * 2.8))
    if algorithm == NVLS_TREE:
        return single(start + single(inside + single(2 * depth * outside)))
    return single(start + inside)


# 2.2, what is on --------------------------------------------------------------


def listed(text, names, kind, v):
    """None: unset; else the names left on for `kind`."""
    if text is None:
        return None
    function = kind.replace("_", "")
    lower = [name.replace("_", "") for name in names]
    entries = [text] if v < (2, 24, 3) else text.split(";")
    result = None
    for entry in entries:
        if v >= (2, 24, 3) and ":" in entry:
            prefix, entry = entry.split(":")
            if prefix.lower() != function:
                continue
        words = [word.lower() for word in entry.lstrip("^").split(",")]
        if entry.startswith("^"):
            result = [n for n, low in zip(names, lower, strict=True) if low not in words]
        else:
            result = [n for n, low in zip(names, lower, strict=True) if low in words]
    return result


def enabled(kind, algorithm, protocol, dtype, op, c, v, env):
    if not kernel_exists(kind, algorithm, protocol, c, v):
        return False
    # NVLS over several hosts is off before the fallback of old releases is looked at.
    names = [TREE, RING, "collnet_direct", "collnet_chain", NVLS, NVLS_TREE, PAT]
    algorithms = listed(env.get("NCCL_ALGO"), names, kind, v)
    if algorithms is not None:
        if v < (2, 24, 3):
            algorithms = [a for a in algorithms if a != (NVLS if c["hosts"] > 1 else NVLS_TREE)]
            if not {TREE, RING, NVLS, NVLS_TREE} & set(algorithms):
                algorithms = [*algorithms, TREE, RING]
            if kind != "all_reduce":
                algorithms = [*algorithms, RING]
        if algorithm not in algorithms:
            return False
    protocols = listed(env.get("NCCL_PROTO"), PROTOCOLS, kind, v)
    if protocols is not None and protocol not in protocols:
        return False
    if algorithm == PAT:
        mode = env.get("NCCL_PAT_ENABLE", "2")
        if mode == "0" or c["sm"] < 60 or (mode == "2" and c["ranks"] != c["hosts"]):
            return False
        if kind == "reduce_scatter" and op in ("avg", "premulsum"):
            return False
    if algorithm in (NVLS, NVLS_TREE) and kind != "all_gather":
        if dtype in ("float32", "float64"):
            if op != "sum":
                return False
        elif dtype in ("int32", "uint32", "int64", "uint64", "float16", "bfloat16"):
            if op not in ("sum", "min", "max"):
                return False
        else:
            return False
    if protocol == "ll128" and protocols is None:
        graph = c["ring" if algorithm == RING else "tree"]
        reach = 5
        if c["sm"] >= 90 and (v < (2, 27, 3) or env.get("NCCL_LL128_C2C", "1") == "1"):
            reach = 7
        if graph["type_inter"] > reach or graph["type_intra"] > 2 or c["sm"] < 70:
            return False
        if v < (2, 25, 1) and c["sm"] not in (70, 80, 90):
            return False
        if v < (2, 27, 3) and c["sm"] not in (70, 80, 90, 100, 120):
            return False
    return bandwidth(kind, algorithm, protocol, c, v) > 0


# 2.3 --------------------------------------------------------------------------

CORRECTION = {
    "ll": "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1 1",
    "ll128": "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1 1",
    "simple": ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9 .9",
}


def predicted(kind, algorithm, protocol, nbytes, c, v, env, pipelined):
    bw = bandwidth(kind, algorithm, protocol, c, v)
    lat = latency(kind, algorithm, protocol, c, v, env)
    index = -1
    while nbytes >> 6 >> (index + 1):
        index += 1
    if index == -1 and v < (2, 22, 3):
        index = 0
    row = [float(x) for x in CORRECTION[protocol].split()]
    blackwell = algorithm == NVLS_TREE and c["sm"] >= 100 and v >= (2, 29, 2)
    if algorithm == TREE and kind == "all_reduce" and 0 <= index <= 22:
        bw = single(bw * single(row[index]))
    if blackwell and c["cpu"] in ("intel", "amd", "mixed") and 0 <= index <= 23:
        bw = single(bw * single(row[index]))
    if algorithm == RING and protocol == "simple" and kind == "all_reduce" and c["hosts"] > 1:
        channels = c["channels"]
        if v < (2, 28, 3):
            channels = max(channels, c["nvls_channels"])
        if nbytes // (channels * c["ranks"]) >= 64:
            lat = single(lat * (1.9 if c["sm"] < 80 else 1.4))
    count = pipelined
    if algorithm != RING:
        count = math.ceil(pipelined / (10 if v >= (2, 22, 3) else 9))
    return single(single(lat * count) + single(single(nbytes) / single(1000 * bw)))


def threads_and_threshold(algorithm, protocol, c, env):
    wanted = int(env.get("NCCL_NTHREADS", 0))
    threads = 640 if protocol == "ll128" else 512
    if algorithm == RING and protocol == "simple" and c["ring"]["intra"] * c["ring"]["n"] <= 12:
        threads = 256
    if wanted and protocol != "ll128":
        threads = max(64, min(wanted, 512))
    if protocol == "ll128" and "NCCL_LL128_NTHREADS" in env:
        threads = max(160, min(int(env["NCCL_LL128_NTHREADS"]), 640))
    threshold = {"ll": 8, "ll128": 8, "simple": 64}[protocol]
    if algorithm == RING and protocol == "ll":
        threshold *= c["ranks"]
    if "NCCL_THREAD_THRESHOLDS" in env and algorithm in (TREE, RING):
        six = [int(x) for x in env["NCCL_THREAD_THRESHOLDS"].split()]
        at = PROTOCOLS.index(protocol) + (3 if algorithm == RING else 0)
        if at < len(six) and six[at] >= 0:
            threshold = six[at]
    return threads, threshold


def choose(kind, nbytes, dtype, op, c, v, env, pipelined=1):
    """(algorithm, protocol, channels, warps, time) or None where nothing is left."""
    best = None
    for algorithm in ALGORITHMS:
        for protocol in PROTOCOLS:
            if not enabled(kind, algorithm, protocol, dtype, op, c, v, env):
                continue
            t = predicted(kind, algorithm, protocol, nbytes, c, v, env, pipelined)
            reduces = kind not in ("all_gather", "broadcast")
            if dtype.startswith("float8") and reduces and c["ranks"] > 8 and algorithm == RING:
                t *= 1024
            if best is None or t < best[0]:
                best = (t, algorithm, protocol)
    if best is None:
        return None
    t, algorithm, protocol = best
    if algorithm in (NVLS, NVLS_TREE):
        return algorithm, protocol, c["nvls_channels"], 20, t
    if algorithm == PAT:
        # No limit on PAT's threads: it keeps every channel.
        return algorithm, protocol, c["channels"], 20, t
    threads, threshold = threads_and_threshold(algorithm, protocol, c, env)
    channels = c["channels"]
    while nbytes < channels * threads * threshold and channels >= 2:
        channels -= 1
    while nbytes < channels * threads * threshold and threads % 128 == 0:
        threads = threads // 2
    if protocol == "simple":
        threads += {RING: 32, TREE: 128}[algorithm]
    threads = max(threads, 96)
    if algorithm == TREE and v >= (2, 22, 3):
        threads = 640
    return algorithm, protocol, channels, threads // 32, t
