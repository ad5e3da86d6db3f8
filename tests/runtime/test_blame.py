from __future__ import annotations

from genie.replay.blame import culprits, describe

NAMES = ["worker 0 (n0)", "worker 1 (n1)", "worker 2 (n2)"]
WORKER_OF = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


def test_the_end_of_the_chain_is_to_blame():
    assert culprits([(0, 1), (1, 2), (2, 3)]) == [3]
    assert culprits([(0, 2), (1, 2), (5, 4)]) == [2, 4]
    assert culprits([(0, 1), (1, 0)]) == []
    assert culprits([]) == []


def test_silent_worker():
    text = describe(
        {0: [(0, 4), (1, 0)], 1: [(2, 0)]}, {0: "zero", 1: "one"}, NAMES, WORKER_OF, [2]
    )
    assert text.splitlines() == [
        "rank 4 of worker 2 (n2), which does not answer any more, is waited for by rank 0",
        "worker 0 (n0): zero",
    ]


def test_rank_that_lacks_a_collective():
    text = describe({0: [(0, 2), (1, 2)], 1: [(3, 0)], 2: []}, {0: "zero"}, NAMES, WORKER_OF, [])
    assert "rank 2 of worker 1 (n1), which waits for nobody, is waited for by ranks 0, 1" in text


def test_circle_and_silence_without_waits():
    text = describe({0: [(0, 2)], 1: [(2, 0)]}, {1: "one"}, NAMES, WORKER_OF, [2])
    assert text == "worker 2 (n2) does not answer any more\nworker 1 (n1): one"
    assert describe({0: [(0, 2)], 1: [(2, 0)]}, {}, NAMES, WORKER_OF, []) == (
        "ranks wait for each other in a circle"
    )
