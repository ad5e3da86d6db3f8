"""The edges a trace implies: streams, threads and communicators run in issue order."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from genie.replay.order import merge_dependencies, ordering_edges
from genie.trace.kinds import Kind

KINDS = [Kind.COMP, Kind.COMM_COLL, Kind.COMM_SEND, Kind.COMM_RECV, Kind.METADATA]

NODE = st.tuples(
    st.sampled_from(KINDS),
    st.integers(-1, 2),  # stream
    st.integers(-1, 1),  # thread
    st.integers(-1, 1),  # group
    st.integers(0, 1),  # peer
    st.integers(0, 1),  # tag
    st.booleans(),  # is_cpu
)


def rank_of(nodes):
    kind, stream, thread, group, peer, tag, cpu = zip(*nodes, strict=True)
    return SimpleNamespace(
        n=len(nodes),
        kind=np.array(kind, np.uint8),
        stream=np.array(stream, np.int32),
        thread=np.array(thread, np.int32),
        group=np.array(group, np.int32),
        peer=np.array(peer, np.int32),
        tag=np.array(tag, np.int32),
        is_cpu=np.array(cpu, np.uint8),
    )


def slow_edges(nodes, order):
    """The same rule, one node after the other."""
    last: dict[object, int] = {}
    edges = set()
    for i in order:
        kind, stream, thread, group, peer, tag, cpu = nodes[i]
        coll = kind == Kind.COMM_COLL
        p2p = kind in (Kind.COMM_SEND, Kind.COMM_RECV)
        keys = []
        if stream >= 0 and not cpu:
            keys.append(("stream", stream))
        if thread >= 0 and cpu and not coll and not p2p:
            keys.append(("thread", thread))
        if coll:
            keys.append(("communicator", group))
        if p2p:
            keys.append((kind, group, peer, tag))
        for key in keys:
            if key in last:
                edges.add((i, last[key]))
            last[key] = i
    return edges


@given(nodes=st.lists(NODE, min_size=1, max_size=40), data=st.data())
def test_edges_follow_issue_order(nodes, data):
    order = data.draw(st.permutations(range(len(nodes))))
    edges = ordering_edges(rank_of(nodes), np.array(order))
    assert set(map(tuple, edges.tolist())) == slow_edges(nodes, order)


@given(
    n=st.integers(1, 20),
    pairs=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=60),
    split=st.integers(0, 60),
)
def test_merged_dependencies_hold_each_parent_once(n, pairs, split):
    pairs = [(child % n, parent % n) for child, parent in pairs]
    listed, added = pairs[:split], pairs[split:]
    rows = [sorted({p for c, p in listed if c == i}) for i in range(n)]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    deps = np.array([p for row in rows for p in row], np.uint32)
    edges = np.array(added, np.int64).reshape(-1, 2)
    merged_indptr, merged = merge_dependencies(n, indptr, deps, edges)
    for i in range(n):
        found = merged[merged_indptr[i] : merged_indptr[i + 1]].tolist()
        assert sorted(found) == sorted({p for c, p in pairs if c == i})
