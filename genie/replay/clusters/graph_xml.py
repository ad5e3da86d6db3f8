"""NCCL's graph dump (NCCL_GRAPH_DUMP_FILE, the format of NCCL_GRAPH_FILE too)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from genie.errors import InputError
from genie.replay.clusters.graph import NO_NVLS, PATHS, Graph, HostGraphs
from genie.replay.clusters.layout import Layout
from genie.replay.clusters.machine import Machine, preset_graphs, preset_machine
from genie.replay.clusters.sources import GraphSource

__all__ = ["Extra", "graph_cluster", "read_graphs", "write_graphs"]

_RING, _TREE, _NVLS = "0", "1", "3"  # graph ids; 2 and 4 are CollNet's
_MOST_CHANNELS = 64


def read_text(xml: str | Path) -> tuple[str, str]:
    """Return the XML text and a name for messages, from text or from a path."""
    if isinstance(xml, str) and xml.lstrip().startswith("<"):
        return xml, "graph dump"
    path = Path(xml)
    try:
        return path.read_text("utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the graph dump {path}: {error}", path=str(path)) from error


def read_graphs(text: str, where: str) -> tuple[HostGraphs, str]:
    """Return the search results in a dump, and what of them it does not hold.

    Args:
        text: The XML.
        where: File name for messages.

    Raises:
        InputError: Not such a file, or one whose numbers contradict each other.
    """
    if "<!" in text and ("<!DOCTYPE" in text or "<!ENTITY" in text):
        raise InputError(f"{where}: a graph dump has no DOCTYPE")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise InputError(f"{where}: not XML: {error}", path=where) from error
    if root.tag != "graphs":
        raise InputError(f"{where}: expected <graphs>, found <{root.tag}>", path=where)
    version = root.get("version", "1")
    if version != "1":
        raise InputError(f"{where}: graph file version {version}, known: 1", path=where)
    doubt = ""
    found: dict[str, Graph] = {}
    for node in root.findall("graph"):
        number = node.get("id")
        if number is None or number in found:
            what = "without an id" if number is None else f"{number} twice"
            raise InputError(f"{where}: a <graph> {what}", path=where)
        found[number] = _read_graph(node, f"{where}: graph {number}")
    if _RING not in found:
        raise InputError(f"{where}: no ring graph (id 0)", path=where)
    ring = found[_RING]
    tree = found.get(_TREE)
    if tree is None:
        doubt = "the dump has no tree graph (id 1): chains in ring order are assumed"
        tree = replace(ring, pattern=3, cross_nic=0)
    for graph, name in ((ring, "ring"), (tree, "tree")):
        _check_orders(graph, set(ring.intra[0]), f"{where}: {name} graph")
    nvls = found.get(_NVLS, NO_NVLS)
    return HostGraphs(ring, tree, nvls if nvls.n_channels else NO_NVLS), doubt


def _read_graph(node: ElementTree.Element, where: str) -> Graph:
    channels = node.findall("channel")
    count = int(_number(node, "nchannels", where))
    if count != len(channels):
        raise InputError(f"{where}: nchannels is {count}, but {len(channels)} are listed")
    if count > _MOST_CHANNELS:
        raise InputError(f"{where}: {count} channels, at most {_MOST_CHANNELS}")
    pattern = int(_number(node, "pattern", where))
    intra, inter = [], []
    for index, channel in enumerate(channels):
        here = f"{where}, channel {index}"
        gpus = tuple(int(_number(g, "dev", here)) for g in channel.findall("gpu"))
        nics = [int(_number(n, "dev", here)) for n in channel.findall("net")]
        if not gpus or len(set(gpus)) != len(gpus):
            raise InputError(f"{here}: GPUs {list(gpus)}: expected each once")
        if len(nics) not in (0, 2):
            raise InputError(f"{here}: {len(nics)} <net>, expected none or two")
        intra.append(gpus)
        if nics:
            inter.append((nics[0], nics[1]))
    if inter and len(inter) != len(intra):
        raise InputError(f"{where}: some channels have NICs and some have none")
    return Graph(
        pattern=pattern,
        n_channels=count,
        bw_intra=_number(node, "speedintra", where),
        bw_inter=_number(node, "speedinter", where, 0.0),
        latency_inter=_number(node, "latencyinter", where, 0.0),
        type_intra=_path(node, "typeintra", where),
        type_inter=_path(node, "typeinter", where),
        same_channels=bool(_number(node, "samechannels", where, 0.0)),
        cross_nic=int(_number(node, "crossnic", where, 0.0)),
        intra=tuple(intra),
        inter=tuple(inter),
    )


def _number(
    node: ElementTree.Element, name: str, where: str, default: float | None = None
) -> float:
    text = node.get(name)
    if text is None:
        if default is None:
            raise InputError(f"{where}: <{node.tag}> has no {name}")
        return default
    try:
        value = float(int(text, 0)) if text[:2].lower() == "0x" else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise InputError(f"{where}: {name}={text!r} is not a number that can be")
    return value


def _path(node: ElementTree.Element, name: str, where: str) -> int:
    text = node.get(name, "LOC").upper()
    if text not in PATHS:
        raise InputError(f"{where}: {name}={text!r}, known: {', '.join(PATHS)}")
    return PATHS.index(text)


def _check_orders(graph: Graph, gpus: set[int], where: str) -> None:
    if graph.n_channels == 0:
        raise InputError(f"{where}: no channels")
    if graph.pattern not in (1, 2, 3, 4):
        raise InputError(f"{where}: pattern {graph.pattern}, known: 1, 2, 3 (trees), 4 (ring)")
    for index, order in enumerate(graph.intra):
        if set(order) != gpus:
            raise InputError(
                f"{where}, channel {index}: GPUs {sorted(order)}, in ring channel 0 {sorted(gpus)}"
            )


@dataclass(frozen=True)
class Extra:
    """What a dump does not say and the user may: None where left open.

    Attributes:
        like: Preset to take the others from.
        sm: Compute capability times ten.
        cpu_vendor: CPU vendor.
        nic_gbps: GB/s of one NIC.
        version: NCCL release that wrote the dump.
    """

    like: str | None = None
    sm: int | None = None
    cpu_vendor: str | None = None
    nic_gbps: float | None = None
    version: tuple[int, ...] | None = None


def graph_cluster(
    xml: str | Path | Sequence[str | Path], hosts: int | None, extra: Extra
) -> tuple[GraphSource, Layout, list[str]]:
    """Return source, layout and notes of a cluster described by graph dumps.

    Args:
        xml: One dump for all hosts, or one a host; each as text or as a path.
        hosts: Number of hosts.
        extra: What the dump does not say.

    Raises:
        InputError: A dump that cannot be read, or one that contradicts `hosts`.
    """
    several = not isinstance(xml, (str, Path))
    items = list(xml) if isinstance(xml, Sequence) and several else [xml]
    if not items:
        raise InputError("no graph dump given")
    if several and hosts is not None and hosts != len(items):
        raise InputError(f"{len(items)} graph dumps for {hosts} hosts: expected one each")
    kinds: dict[str, int] = {}
    types: list[tuple[Machine, HostGraphs]] = []
    notes: list[str] = []
    of_host = []
    doubt = ""
    for item in items:
        assert isinstance(item, (str, Path))
        text, where = read_text(item)
        if text not in kinds:
            kinds[text] = len(types)
            graphs, unsure = read_graphs(text, where)
            doubt = doubt or unsure
            graphs = _as_today(graphs, extra.version)
            machine, assumed = graph_machine(graphs, where, extra)
            machine = _as_preset(machine, graphs, extra.like)
            types.append((machine, graphs))
            notes += [note for note in assumed if note not in notes]
        of_host.append(kinds[text])
    bare = [not graphs.ring.inter for _, graphs in types]
    if several:
        hosts = len(items)
    elif hosts is None:
        hosts = 1 if bare[0] else 2
        if not bare[0]:
            notes.append("a dump does not say how many hosts there are: 2 assumed (give hosts=)")
    if hosts > 1:
        notes.append("NICs of sends and receives are derived from the channels' first GPUs")
    if any(bare) and hosts > 1:
        raise InputError(
            f"the dump has no NICs, so its communicator lives on one host, not on {hosts}"
        )
    if not several:
        of_host *= hosts
    members = [
        (host, gpu)
        for host, kind in enumerate(of_host)
        for gpu in sorted(types[kind][1].ring.intra[0])
    ]
    layout = Layout.of(members, dict(enumerate(of_host)))
    source = GraphSource(types[0][0], tuple(types), all(bare), doubt=doubt)
    return source, layout, notes


def _as_today(graphs: HostGraphs, version: tuple[int, ...] | None) -> HostGraphs:
    """Return the graphs with the crossNic code of 2.30 (spec versions section 2)."""
    if version is None or version >= (2, 23, 4) or graphs.ring.cross_nic != 1:
        return graphs
    return graphs._replace(ring=replace(graphs.ring, cross_nic=2))


def graph_machine(graphs: HostGraphs, name: str, extra: Extra) -> tuple[Machine, list[str]]:
    """Return the host type behind a dump, and what had to be assumed.

    A GPU's nearest NIC is the one of the channels that begin at it.

    Args:
        graphs: Search results of one host.
        name: Name of the machine.
        extra: What the dump does not say.
    """
    like, sm, cpu_vendor, nic_gbps = extra.like, extra.sm, extra.cpu_vendor, extra.nic_gbps
    notes = []
    if graphs.ring.cross_nic == 1 and extra.version is None:
        notes.append("crossnic 1 is read as NCCL 2.23 and later mean it (give nccl_version=)")
    base = preset_machine(like) if like else None
    if base is None and (sm is None or cpu_vendor is None or nic_gbps is None):
        names = {"compute capability": sm, "CPU vendor": cpu_vendor, "NIC speed": nic_gbps}
        missing = ", ".join(what for what, value in names.items() if value is None)
        notes.append(f"not in the dump, taken from preset h100x8: {missing} (give like=PRESET)")
        base = preset_machine("h100x8")
    assert base is not None or (sm is not None and cpu_vendor is not None and nic_gbps is not None)
    near: dict[int, list[int]] = {}
    for graph in (graphs.ring, graphs.tree):
        for order, nics in zip(graph.intra, graph.inter, strict=False):
            found = near.setdefault(order[0], [])
            if nics[0] not in found:
                found.append(nics[0])
    n_gpus = max(graphs.ring.intra[0]) + 1
    n_nics = max((nic for found in near.values() for nic in found), default=0) + 1
    switch_of_nic = tuple(range(n_nics))
    speed = nic_gbps if nic_gbps is not None else base.nic_gbps if base else 0.0
    machine = Machine(
        name=name,
        description=f"{len(graphs.ring.intra[0])} GPUs, {n_nics} NICs, read from a graph dump",
        gpus_per_host=len(graphs.ring.intra[0]),
        nics_per_host=n_nics,
        nic_gbps=speed,
        path_gbps=min(speed, base.path_gbps) if base else speed,
        sm=sm if sm is not None else base.sm if base else 0,
        cpu_vendor=cpu_vendor or (base.cpu_vendor if base else "unknown"),
        # A GPU without a NIC of its own hangs on a switch of its own.
        switch_of_gpu=tuple(near.get(g, [n_nics + g])[0] for g in range(n_gpus)),
        switch_of_nic=switch_of_nic,
        cpu_of_gpu=(0,) * n_gpus,
        nvls=graphs.nvls.n_channels > 0,
        nvlink=graphs.ring.type_intra <= 2,
    )
    return machine, notes


def _as_preset(machine: Machine, graphs: HostGraphs, like: str | None) -> Machine:
    """Return the machine with a preset's switches where its search results are the dump's."""
    if like is None:
        return machine
    measured = preset_graphs(like, not graphs.ring.inter, (2, 30, 7))
    if measured is None:
        return machine
    for ours, theirs in ((graphs.ring, measured.ring), (graphs.tree, measured.tree)):
        if ours.intra != theirs.intra or (ours.inter and ours.inter != theirs.inter):
            return machine
    base = preset_machine(like)
    return replace(
        machine,
        switch_of_gpu=base.switch_of_gpu,
        switch_of_nic=base.switch_of_nic,
        cpu_of_gpu=base.cpu_of_gpu,
        nics_per_host=base.nics_per_host,
        family=base.family,
    )


def write_graphs(graphs: HostGraphs, with_nics: bool) -> str:
    """Return a dump of one host's search results, as NCCL writes it.

    Args:
        graphs: The results.
        with_nics: Whether the communicator has several hosts (one host's dump has no NICs).
    """
    root = ElementTree.Element("graphs", version="1")
    ids = ((_RING, graphs.ring), (_TREE, graphs.tree), (_NVLS, graphs.nvls))
    for number, graph in ids:
        intra, inter = graph.type_names()
        node = ElementTree.SubElement(
            root,
            "graph",
            {
                "id": number,
                "pattern": str(graph.pattern),
                "crossnic": str(graph.cross_nic),
                "nchannels": str(graph.n_channels),
                "speedintra": f"{graph.bw_intra:g}",
                "speedinter": f"{graph.bw_inter:g}",
                "latencyinter": f"{graph.latency_inter:g}",
                "typeintra": intra,
                "typeinter": inter,
                "samechannels": str(int(graph.same_channels)),
            },
        )
        for index, order in enumerate(graph.intra):
            channel = ElementTree.SubElement(node, "channel")
            if with_nics:
                ElementTree.SubElement(channel, "net", dev=str(graph.inter[index][0]))
            for gpu in order:
                ElementTree.SubElement(channel, "gpu", dev=str(gpu))
            if with_nics:
                ElementTree.SubElement(channel, "net", dev=str(graph.inter[index][1]))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"
