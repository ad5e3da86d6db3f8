"""What the probes of a fabric mean: findings with their fixes, and tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from genie.replay.preflight.pairs import Link
from genie.replay.preflight.report import Report

#: A link with less than this share of the median link's bandwidth is named.
SLOW = 0.7
_MOST = 8


def report_of(
    names: Sequence[str],
    hosts: Mapping[int, Mapping[str, Any]],
    missing: Mapping[int, str],
    links: Sequence[Link],
) -> Report:
    """Return the report of a fabric.

    Args:
        names: "index endpoint" of each worker.
        hosts: Worker → its NICs and the findings about its host.
        missing: Worker → why it was lost or never came.
        links: What was probed.
    """
    report = Report()
    for worker, why in sorted(missing.items()):
        report.add(f"worker {names[worker]}", "fail", why,
                   "start it by hand with `genie check` on that host to see why")  # fmt: skip
    rows = []
    for worker, host in sorted(hosts.items()):
        good = [f for f in host["findings"] if f["level"] == "ok"]
        nics = ", ".join(f"{nic['name']} MTU {nic['mtu']}" for nic in host["nics"])
        report.add(f"worker {names[worker]}", "ok", f"{nics}; {len(good)} checks of its host ok")
        for found in host["findings"]:
            rows.append({"worker": worker, **found})
            if found["level"] != "ok":
                report.add(f"worker {names[worker]} {found['area']}", found["level"],
                           found["found"], found["fix"])  # fmt: skip
    namer = _Namer(names, hosts)
    _reachability(report, links, namer)
    _rails(report, links, hosts)
    _mtu(report, links, hosts, namer)
    _bandwidth(report, links, namer)
    report.tables["reachable"] = _matrix(links, namer)
    report.tables["pairs"] = _pairs(links, namer)
    report.more["hosts"] = rows
    return report


class _Namer:
    """Calls a worker's NIC by its name, and by its endpoint where one has several."""

    def __init__(self, names: Sequence[str], hosts: Mapping[int, Mapping[str, Any]]) -> None:
        self._names = names
        self._hosts = hosts

    def __call__(self, worker: int, nic: int) -> str:
        nics = self._hosts.get(worker, {}).get("nics", ())
        if len(nics) < 2:
            return self._names[worker]
        return f"{self._names[worker].split('/')[0]}/{nics[nic]['name']}"

    def link(self, link: Link) -> str:
        return f"{self(link.a, link.nic_a)} - {self(link.b, link.nic_b)}"


def _some(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return "; ".join(texts[:_MOST]) + more


def _reachability(report: Report, links: Sequence[Link], namer: _Namer) -> None:
    """Links within a rail must work; those across are told of in _rails."""
    same = [link for link in links if link.same_rail]
    cut = [link for link in same if link.error]
    text = f"{len(same) - len(cut)} of {len(same)} pairs reach each other"
    if not cut:
        report.add("reachable", "ok", text)
        return
    report.add("reachable", "fail", text,
               "look at the links, routes, firewalls (RoCE: UDP 4791) of these pairs")  # fmt: skip
    for link in cut[:_MOST]:
        report.add(f"pair {namer.link(link)}", "fail", link.error,
                   "neither end gets through: compare with a pair that does")  # fmt: skip
    if len(cut) > _MOST:
        report.add("pairs", "fail", f"and {len(cut) - _MOST} more", "see table pairs (--json)")


def _rails(report: Report, links: Sequence[Link], hosts: Mapping[int, Mapping[str, Any]]) -> None:
    across = [link for link in links if not link.same_rail]
    if not across:
        return
    good = sum(1 for link in across if not link.error)
    text = f"across rails {good} of {len(across)} NIC pairs reach each other"
    if good == len(across):
        report.add("rails", "ok", text)
    elif good == 0:
        report.add("rails", "warn", f"{text}: a rail-only fabric",
                   "emulate a cluster that stays on its rails (PXN; a preset or the job's graph)"
                   )  # fmt: skip
    else:
        report.add("rails", "warn", text,
                   "some rails are joined and some are not: look at the spine")  # fmt: skip


def _mtu(
    report: Report, links: Sequence[Link], hosts: Mapping[int, Mapping[str, Any]], namer: _Namer
) -> None:
    differ = []
    for link in links:
        if link.a not in hosts or link.b not in hosts or not link.same_rail:
            continue
        mtus = [hosts[w]["nics"][n]["mtu"] for w, n in ((link.a, link.nic_a), (link.b, link.nic_b))]
        if mtus[0] != mtus[1]:
            differ.append(f"{namer.link(link)}: {mtus[0]} and {mtus[1]}")
    if differ:
        report.add("mtu", "warn", _some(differ), "the same MTU on both ends and every hop between")
    elif links:
        report.add("mtu", "ok", "the same on both ends of every pair")


def _bandwidth(report: Report, links: Sequence[Link], namer: _Namer) -> None:
    for link in links:
        if link.slow:
            stalled = not link.slow.startswith("not measured")
            report.add(f"bandwidth {namer.link(link)}", "fail" if stalled else "warn", link.slow,
                       "small messages pass, large ones do not: an MTU on the way is smaller"
                       if stalled else "a longer limit, or fewer endpoints")  # fmt: skip
    rates = [(link, way, row["average_mbs"]) for link in links for way, row in link.ways.items()]
    if not rates:
        return
    middle = statistics.median(rate for _, _, rate in rates)
    slow = [
        f"{namer(*_end(link, way[0]))} to {namer(*_end(link, way[1]))}: {rate:.1f} MB/s"
        for link, way, rate in rates
        if rate < SLOW * middle
    ]
    text = f"{middle:.1f} MB/s in the median of {len(rates)} ways (MB = 2^20 bytes)"
    if slow:
        report.add("bandwidth", "warn", f"{text}; {_some(slow)}",
                   "a slower port, a lossy cable, or other traffic on these links")  # fmt: skip
    else:
        report.add("bandwidth", "ok", text)


def _end(link: Link, worker: int) -> tuple[int, int]:
    return (link.a, link.nic_a) if worker == link.a else (link.b, link.nic_b)


def _matrix(links: Sequence[Link], namer: _Namer) -> list[dict[str, Any]]:
    """Half a round trip in microseconds, or "no", of every NIC with every other."""
    cells: dict[tuple[tuple[int, int], tuple[int, int]], str] = {}
    ends: set[tuple[int, int]] = set()
    for link in links:
        a, b = (link.a, link.nic_a), (link.b, link.nic_b)
        ends |= {a, b}
        cells[a, b] = cells[b, a] = "no" if link.error else f"{link.latency_us:.1f}"
    order = sorted(ends)
    return [
        {"us": namer(*one), **{namer(*other): cells.get((one, other), "-") for other in order}}
        for one in order
    ]


def _pairs(links: Sequence[Link], namer: _Namer) -> list[dict[str, Any]]:
    rows = []
    for link in links:
        for way in ((link.a, link.b), (link.b, link.a)):
            row = link.ways.get(way)
            pings = sorted(link.ping_ns)
            rows.append(
                {
                    "from": namer(*_end(link, way[0])),
                    "to": namer(*_end(link, way[1])),
                    "latency[usec]": _or_none(link.latency_us if pings else None, 2),
                    "99%[usec]": _or_none(
                        pings[len(pings) * 99 // 100] / 2000 if pings else None, 2
                    ),
                    "#bytes": row["bytes"] if row else None,
                    "#iterations": row["iterations"] if row else None,
                    "BW peak[MB/sec]": _or_none(row["peak_mbs"] if row else None, 2),
                    "BW average[MB/sec]": _or_none(row["average_mbs"] if row else None, 2),
                    "MsgRate[Mpps]": _or_none(row["msg_rate_mpps"] if row else None, 6),
                    "error": link.error or link.slow,
                }
            )
    return rows


def _or_none(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
