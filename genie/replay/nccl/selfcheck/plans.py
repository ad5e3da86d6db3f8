"""Golden tuning, chunking, groups, env_variants, and the choices of sub-communicators."""

from __future__ import annotations

from typing import Any

from genie.errors import InputError
from genie.replay.cluster import Cluster
from genie.replay.nccl import golden
from genie.replay.nccl.choice import Choice
from genie.replay.nccl.chunk import fifo_steps, last_chunk_bytes
from genie.replay.nccl.context import context
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.names import ALGORITHMS, function_code
from genie.replay.nccl.schedule import Schedule, schedule, schedule_group
from genie.replay.nccl.selfcheck.common import (
    DTYPE,
    KIND,
    entry_cluster,
    entry_name,
    plan_channels,
    plan_choice,
    plan_parts,
    preset,
)
from genie.replay.nccl.selfcheck.tally import Tally
from genie.replay.nccl.tuner import tune


def six(value: float) -> str:
    """Return `value` with six significant digits, as NCCL prints times."""
    return f"{value:.6g}"


def check_tuning(version: str) -> Tally:
    """Compare threads, thresholds, latency and bandwidth pairs, and selections."""
    tally = Tally("tuning", version)
    nccl = Nccl(version)
    for entry in golden.load("tuning", version)["clusters"]:
        cluster = preset(entry["machine"], entry["nNodes"]).with_nccl(nccl)
        name = entry_name(entry)
        model = context(cluster, nccl).model
        tally.same(cluster.coll_channels, entry["nChannels"], name, "channels")
        for field, mine in (
            ("maxThreads", model.max_threads),
            ("threadThresholds", model.thresholds),
        ):
            for algorithm, want in entry[field].items():
                row = mine[ALGORITHMS.index(algorithm.lower())]
                tally.same(list(row), want, name, field, algorithm)
        _latencies(tally, entry, cluster, nccl, name)
        _selections(tally, entry, cluster, nccl, name)
    return tally


def _latencies(
    tally: Tally, entry: dict[str, Any], cluster: Cluster, nccl: Nccl, name: str
) -> None:
    for coll, pairs in entry["latBw"].items():
        rows = tune(KIND[coll], count=1024, cluster=cluster, nccl=nccl)
        mine = {
            f"{row.algorithm}/{row.protocol}".upper(): [row.latency_us, row.bandwidth_gbps]
            for row in rows
            if row.enabled
        }
        tally.same(sorted(mine), sorted(pairs), name, coll, "enabled")
        for key, want in pairs.items():
            got = [six(value) for value in mine.get(key, [])]
            tally.same(got, [six(value) for value in want], name, coll, key)


def _selections(
    tally: Tally, entry: dict[str, Any], cluster: Cluster, nccl: Nccl, name: str
) -> None:
    for coll, rows in entry["select"].items():
        per = 4 * (cluster.n_ranks if coll in ("allgather", "reducescatter") else 1)
        for nbytes, algorithm, protocol, channels, warps, time in rows:
            choice = schedule(KIND[coll], count=nbytes // per, cluster=cluster, nccl=nccl).choice
            got = choice and (
                choice.algorithm,
                choice.protocol,
                choice.channels,
                choice.warps,
                six(choice.time_us),
            )
            want = (algorithm.lower(), protocol.lower(), channels, warps, six(time))
            tally.same(got, want, name, coll, nbytes)


def check_subcomm_choices(version: str = "2.30") -> Tally:
    """Compare the costs and selections of every sub-communicator of several hosts."""
    tally = Tally("sub/subcomm (choices)", version)
    nccl = Nccl(version)
    for entry in golden.load("sub/subcomm", version)["cases"]:
        if "select" not in entry:
            continue
        cluster = entry_cluster(entry).with_nccl(nccl)
        _latencies(tally, entry, cluster, nccl, entry["case"])
        _selections(tally, entry, cluster, nccl, entry["case"])
    return tally


def same_plan(
    tally: Tally, plan: dict[str, Any], made: Schedule, coll: str, *where: object
) -> bool:
    """Compare choice, parts, FIFO steps and last chunks of one plan; one comparison."""
    choice = made.choice
    assert choice is not None
    got = (
        choice.algorithm,
        choice.protocol,
        choice.channels,
        choice.warps,
        choice.element_size,
    )
    parts = [(int(c), int(n), int(k)) for c, n, k in made.parts]
    mine: list[object] = [got, parts]
    want: list[object] = [plan_choice(plan), plan_parts(plan)]
    if mine == want:
        steps, wanted = _steps(plan, made, choice, function_code(KIND[coll]))
        mine.append(steps)
        want.append(wanted)
    return tally.same(mine, want, *where)


def _steps(
    plan: dict[str, Any], made: Schedule, choice: Choice, function: int
) -> tuple[list[int], list[int]]:
    """Return FIFO steps and last chunks, computed and expected."""
    cluster, nccl = made.cluster, made.nccl
    part = {int(c): (int(n), int(k)) for c, n, k in made.parts}
    mine, want = [], []
    for op in plan["proxyOps"]:
        # PAT's steps are per peer there, of the last peer only.
        if choice.algorithm != "pat":
            mine.append(fifo_steps(function, choice, *part[op["ch"]], cluster))
            want.append(op["nsteps"])
    if "lastChunkBytesLo" in plan:
        for channel, where in plan_channels(plan):
            mine.append(last_chunk_bytes(function, choice, *part[channel], cluster, nccl))
            want.append(plan["lastChunkBytes" + where])
    return mine, want


def check_chunking(version: str) -> Tally:
    """Compare choice, parts and FIFO steps of single collectives."""
    tally = Tally("chunking", version)
    for entry in golden.load("chunking", version)["entries"]:
        made = schedule(
            KIND[entry["coll"]],
            count=entry["count"],
            cluster=entry_cluster(entry),
            nccl=settings(version, entry.get("env")),
        )
        same_plan(
            tally, entry["plan"], made, entry["coll"],
            entry_name(entry), entry["coll"], entry["count"],
        )  # fmt: skip
    return tally


def check_groups(version: str) -> Tally:
    """Compare order, choice and parts of grouped collectives."""
    tally = Tally("groups", version)
    for entry in golden.load("groups", version)["entries"]:
        tasks = [(KIND[coll], count, DTYPE[size]) for coll, count, size in entry["input"]]
        made = schedule_group(
            tasks, cluster=entry_cluster(entry), nccl=settings(version, entry.get("env"))
        )
        order = [(KIND[item["coll"]], item["count"]) for item in entry["planOrder"]]
        tally.same([(one.kind, one.count) for one in made], order, entry_name(entry), "order")
        for one, want in zip(made, entry["planOrder"], strict=False):
            same_plan(tally, want["plan"], one, want["coll"], entry_name(entry), entry["input"])
    return tally


def check_env_variants(version: str) -> Tally:
    """Compare channels, buffers, choices and parts under each environment setting.

    NCCL_CROSS_NIC on a preset whose search it would change is refused by name; those entries
    count only the refusal.
    """
    from genie.replay.nccl.selfcheck.clusters import check_environment, refused

    tally = Tally("env_variants", version)
    for entry in golden.load("env_variants", version)["entries"]:
        nccl = settings(version, entry["env"])
        try:
            cluster = preset(entry["machine"], entry["nNodes"]).with_nccl(nccl)
        except InputError as error:
            tally.same(refused(entry, error, version), True, entry_name(entry), error)
            continue
        check_environment(tally, entry, cluster)
        for coll, nbytes, algorithm, protocol, channels, warps, low, high, chunk in entry["select"]:
            per = 4 * (cluster.n_ranks if coll in ("allgather", "reducescatter") else 1)
            made = schedule(KIND[coll], count=nbytes // per, cluster=cluster, nccl=nccl)
            choice, parts = made.choice, made.parts
            got = choice and (
                choice.algorithm,
                choice.protocol,
                choice.channels,
                choice.warps,
                int(parts["channel"][0]),
                int(parts["channel"][-1]),
                int(parts["chunk_bytes"][0]),
            )
            want = (algorithm.lower(), protocol.lower(), channels, warps, low, high, chunk)
            tally.same(got, want, entry_name(entry), coll, nbytes)
    return tally


_settings: dict[tuple[str, tuple[tuple[str, str], ...]], Nccl] = {}


def settings(version: str, env: dict[str, str | None] | None) -> Nccl:
    """Return the `Nccl` of an entry, made once per environment."""
    kept = tuple(sorted((k, v) for k, v in (env or {}).items() if v is not None))
    if (version, kept) not in _settings:
        _settings[version, kept] = Nccl(version, env=dict(kept))
    return _settings[version, kept]
