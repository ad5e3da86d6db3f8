"""NCCL's split over channels and its chunk sizes, once more and plainly (spec 2.4, 2.5, V7, V8)."""

import math

from reference.plain_tuner import NVLS, NVLS_TREE, PAT, RING, TREE, single


def up(a, b):
    return math.ceil(a / b) * b if a < 1 << 52 else -(-a // b) * b


def ceil_div(a, b):
    return -(-a // b)


def weight(kind, ranks):
    return {"all_reduce": 2, "all_gather": ranks, "reduce_scatter": ranks}.get(kind, 1)


def split(tasks, c, v):
    """Parts of one plan.

    tasks: (kind, count, element size, algorithm, protocol, channels, warps, bytes decided on).
    Returns per task a list of (channel, count, chunk bytes).
    """
    return old_split(tasks, c, v) if v < (2, 22, 3) else cell_split(tasks, c, v)


def minimum(v):
    return 32768 if v >= (2, 29, 2) else 16384 if v >= (2, 23, 4) else 512


def cell_split(tasks, c, v):
    answers = [None] * len(tasks)
    for nvls in (False, True):
        mine = [i for i, t in enumerate(tasks) if (t[3] in (NVLS, NVLS_TREE)) == nvls]
        limit = c["nvls_channels"] if nvls else c["channels"]
        total = wanted = 0
        for i in mine:
            kind, count, size, _, protocol, channels, *_ = tasks[i]
            traffic = count * size * weight(kind, c["ranks"])
            if protocol == "ll" and v >= (2, 26, 2):
                traffic *= 4
            total += max(traffic, minimum(v)) if v >= (2, 23, 4) else traffic
            wanted += channels
        if not mine:
            continue
        share = total // min(wanted, limit)
        share = up(share, 16) if v >= (2, 29, 2) else max(share, minimum(v))
        here, used = 0, 0
        for i in mine:
            kind, count, size, algorithm, protocol, *_ = tasks[i]
            per_byte = weight(kind, c["ranks"])
            if protocol == "ll" and v >= (2, 26, 2):
                per_byte *= 4
            cell = up(ceil_div(minimum(v), per_byte), 16) if v >= (2, 23, 4) else 16
            cells = ceil_div(count * size, cell)
            each = min(cells, ceil_div(share, cell * per_byte))
            if here == limit - 1:
                first = cells
            elif v >= (2, 23, 4):
                first = min(cells, ceil_div(share - used, cell * per_byte))
            else:
                first = min(cells, (share - used) // (cell * per_byte))
            rest = cells - first
            later = [each] * (rest // each) + ([rest % each] if rest % each else [])
            if (first > 0) + len(later) > limit - here:
                n = limit - here - 1
                later = [rest // n] * n
                later[-1] += rest % n
            dealt = [(here, first)] if first else []
            dealt += [(here + 1 + k, x) for k, x in enumerate(later)]
            counts = [x * (cell // size) for _, x in dealt]
            counts[-1] -= sum(counts) - count
            answers[i] = [
                (channel, n, chunk(kind, algorithm, protocol, n, size, c, v))
                for (channel, _), n in zip(dealt, counts, strict=True)
            ]
            carried = dealt[-1][1] * cell * per_byte
            if v < (2, 23, 4):
                carried = counts[-1] * size * per_byte
            if dealt[-1][0] == here:
                used += carried
            elif len(dealt) == 1:
                # The current channel was too full: the next one took it, with its load kept.
                here, used = dealt[0][0], used + carried
            else:
                here, used = dealt[-1][0], carried
            if used >= share and here < limit - 1:
                here, used = here + 1, 0
    return answers


def old_split(tasks, c, v):
    usable = min(
        max(c["nvls_channels"] if t[3] in (NVLS, NVLS_TREE) else c["channels"] for t in tasks),
        sum(t[5] for t in tasks),
    )
    total = sum(t[1] * t[2] for t in tasks)
    share = up(ceil_div(total, usable), 16)
    used = [0] * usable
    answers = []
    for kind, count, size, algorithm, protocol, _, warps, decided in tasks:
        step = {"simple": 4096 // size, "ll128": 480 // size * warps, "ll": 8 // size * warps * 32}
        align = step[protocol]
        own = ceil_div(count * size * usable, total)
        nbytes = chunk(kind, algorithm, protocol, count, size, c, v, decided, own)
        rows, left = [], count
        for channel in range(usable):
            if left == 0:
                break
            if used[channel] >= share:
                continue
            take = ceil_div(share - used[channel], size)
            take = min(ceil_div(take, align) * align, left)
            rows.append((channel, take, nbytes))
            used[channel] += take * size
            left -= take
        assert left == 0
        answers.append(rows)
    return answers


def chunk(kind, algorithm, protocol, count, size, c, v, decided=None, n=1):
    """Chunk bytes; from 2.22.3 of one channel's part, before of the whole."""
    gathers = kind in ("all_gather", "reduce_scatter")
    nbytes = count * size * (c["ranks"] if gathers else 1) if decided is None else decided
    slot = c["buffers"][protocol] // 8
    data = {"ll": slot // 2, "ll128": slot * 120 // 128, "simple": slot}[protocol]
    if algorithm == RING and protocol == "simple" and (gathers or kind == "all_reduce"):
        data *= 4
    if algorithm == TREE and protocol == "ll128":
        ppn = single(c["ranks"] / c["hosts"])
        k = single(1 + int(math.log2(c["hosts"])) + 0.1 * ppn)
        while nbytes // (n * data) < single(single(k * 64) / ppn) and data > 131072:
            data //= 2
        while nbytes // (n * data) < single(single(k * 16) / ppn) and data > 32768:
            data //= 2
    if algorithm == PAT:
        while data * (32 if kind == "all_gather" else 16) > nbytes and data > 65536:
            data //= 2
    if algorithm in (NVLS, NVLS_TREE):
        data = c["nvls_chunk"]
        if algorithm == NVLS_TREE:
            data = min(data, c["nvls_tree_chunk"])
        for m, low in ((32, 262144), (16, 131072), (4, 65536), (1, 32768)):
            if nbytes < m * n * c["nvls"]["n"] * data and data > low:
                data = low
    if v < (2, 22, 3):
        return data // size * size
    grain = {"ll": 16, "ll128": 1920, "simple": 512}[protocol]
    return data // grain * grain
