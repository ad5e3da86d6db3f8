"""Arguments of the public calls that cannot be: each one clear `GenieError`."""

from __future__ import annotations

import numpy as np
import pytest

import genie
from genie.errors import InputError

C = genie.Cluster.preset("h100x8", hosts=2)
ONE = genie.schedule("all_reduce", count=1000, cluster=C)


def ask(kind: str = "all_reduce", **changed):
    return genie.schedule(kind, **{"count": 1000, "cluster": C, **changed})


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: ask(cluster="h100x8:2"), "genie.Cluster"),
        (lambda: ask(cluster=None), "genie.Cluster"),
        (lambda: ask(nccl={"NCCL_ALGO": "Ring"}), "genie.Nccl"),
        (lambda: ask(nccl="2.30"), "genie.Nccl"),
        (lambda: ask("broadcast", root="0"), "root '0'"),
        (lambda: ask("broadcast", root=None), "root None"),
        (lambda: ask("broadcast", root=1.5), "root 1.5"),
        (lambda: ask("send", peer="1"), "peer '1'"),
        (lambda: ask(count=1 << 63), "no real size"),
        (lambda: ask("all_to_all", splits=np.full((16, 16), 1 << 61)), "no real size"),
        (lambda: ONE.messages("0"), "rank '0'"),
        (lambda: ONE.messages(None), "rank None"),
        (lambda: ONE.messages(1.0), "rank 1.0"),
        (lambda: genie.Cluster.preset("h100x8", hosts="2"), "hosts"),
        (lambda: genie.Cluster.preset("h100x8", hosts=1.5), "hosts"),
        (lambda: genie.Cluster.preset("h100x8", hosts=1 << 40), "at most"),
        (lambda: genie.Cluster.preset("h100x8", gpu_order=3), "gpu_order"),
        (lambda: genie.Cluster.preset("h100x8", gpu_order=[1.0, 0, 2, 3, 4, 5, 6, 7]), "gpu_order"),
        (lambda: genie.Cluster.local("2", 1), "hosts"),
        (lambda: C.communicator([0, 1]), "pairs"),
        (lambda: C.communicator(None), "pairs"),
        (lambda: C.communicator([(0, 0), (1,)]), "pairs"),
    ],
)
def test_refused(call, names):
    with pytest.raises(InputError, match=names):
        call()


def test_numpy_numbers_are_numbers():
    one = ask("broadcast", root=np.int64(3), count=np.int32(7))
    assert np.array_equal(one.messages(np.int64(0)), ask("broadcast", root=3, count=7).messages(0))
    order = np.arange(8)[::-1]
    assert genie.Cluster.preset("h100x8", hosts=np.int64(2), gpu_order=order).n_ranks == 16
