"""Hypothesis strategies of clusters, settings and collectives, shared by the NCCL tests."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import strategies as st

from genie.errors import InputError
from genie.replay.cluster import Cluster
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.names import DTYPE_SIZE, OPS
from genie.replay.nccl.versions import RELEASES, version_text

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")

_SMALL = ("h100x1", "a100x1", "a100x1_100g", "v100x1_100g", "h100x8", "a100x8", "b200x8")
_SUBSETS = ("h100x8", "a100x8", "b200x8")


@lru_cache(maxsize=512)
def _preset(name, hosts):
    return Cluster.preset(name, hosts=hosts)


@st.composite
def clusters(draw):
    """Presets of some hosts, and communicators with equal or unequal sets of GPUs."""
    if draw(st.booleans()):
        name = draw(st.sampled_from(_SMALL))
        return _preset(name, draw(st.sampled_from([2, 3, 4, 5, 8, 17, 64])))
    name = draw(st.sampled_from(_SUBSETS))
    hosts = draw(st.integers(2, 4))
    gpus = st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True)
    equal = draw(st.booleans())
    each = [draw(gpus)] * hosts if equal else [draw(gpus) for _ in range(hosts)]
    return _preset(name, hosts).communicator([(h, g) for h, own in enumerate(each) for g in own])


_ALL_RELEASES = tuple(map(version_text, RELEASES))

_VALUES = {
    "NCCL_ALGO": [
        "Tree",
        "Ring",
        "^Ring",
        "NVLSTree,Ring",
        "allreduce:tree",
        "ring;allreduce:^PAT",
    ],
    "NCCL_PROTO": ["Simple", "LL,LL128", "^LL128", "^LL", "allreduce:ll;allgather:simple"],
    "NCCL_MIN_NCHANNELS": ["2", "8", "20"],
    "NCCL_MAX_NCHANNELS": ["20", "24"],
    "NCCL_BUFFSIZE": ["1048576", "8388608", "3000000"],
    "NCCL_LL_BUFFSIZE": ["1048576", "100000"],
    "NCCL_LL128_BUFFSIZE": ["614400", "9830400"],
    "NCCL_NTHREADS": ["64", "256", "1024"],
    "NCCL_LL128_NTHREADS": ["160", "320"],
    "NCCL_THREAD_THRESHOLDS": ["16 16 128 64 16 128", "-1 2 3", "8 8 8 8 8 8"],
    "NCCL_NET_OVERHEAD": ["0", "500", "5000"],
    "NCCL_PAT_ENABLE": ["0", "1", "2"],
    "NCCL_LL128_C2C": ["0", "1"],
    "NCCL_NVLS_ENABLE": ["0", "1"],
    "NCCL_NVLS_CHUNKSIZE": ["65536", "262144"],
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": ["32768", "262144"],
}


@st.composite
def settings_of(draw, versions=_ALL_RELEASES):
    """An `Nccl` of any release with up to three variables."""
    names = draw(st.lists(st.sampled_from(sorted(_VALUES)), max_size=3, unique=True))
    env = {name: draw(st.sampled_from(_VALUES[name])) for name in names}
    version = draw(st.sampled_from(versions))
    try:
        return Nccl(version, env=env)
    except InputError:
        # A list this release cannot read; the syntax has tests of its own.
        return Nccl(version)


def counts():
    """Counts around powers of two and around NCCL's thresholds, and any others."""
    near = st.builds(
        lambda bits, off: max((1 << bits) + off, 1), st.integers(0, 30), st.integers(-3, 3)
    )
    return st.one_of(near, st.integers(1, 1 << 31))


def dtypes():
    return st.sampled_from(sorted(DTYPE_SIZE))


def ops():
    return st.sampled_from(OPS)


def effective(cluster, nccl):
    """The cluster under `nccl`, or None where the release does not know the machine."""
    try:
        found = cluster.with_nccl(nccl)
        _ = found.coll_channels
    except InputError:
        return None
    return found


def as_dict(cluster):
    """What the plain reference takes: numbers of the cluster, no objects."""

    def graph(name):
        g = cluster.graphs[name]
        return {
            "n": g.n_channels, "intra": g.bw_intra, "inter": g.bw_inter, "pattern": g.pattern,
            "latency": g.latency_inter, "type_intra": g.type_intra, "type_inter": g.type_inter,
            "same_channels": g.same_channels,
        }  # fmt: skip

    return {
        "ranks": cluster.n_ranks, "hosts": cluster.n_hosts, "sm": cluster.sm,
        "cpu": cluster.cpu_vendor, "channels": cluster.coll_channels,
        "nvls_channels": cluster.nvls_channels, "buffers": cluster.buffer_bytes,
        "nvls_chunk": cluster.nvls_chunk_bytes,
        "nvls_tree_chunk": cluster.nvls_tree_max_chunk_bytes,
        "ring": graph("ring"), "tree": graph("tree"), "nvls": graph("nvls"),
    }  # fmt: skip
