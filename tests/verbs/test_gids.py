"""Choice of GIDs, ports and settings: NCCL issues 426, 769, uccl 803, Justitia 3."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import DeviceNotFoundError, GenieError, InputError, TransportError
from genie.replay.transports.gids import ROCE_V1, ROCE_V2, Gid, choose_gid
from genie.replay.transports.verbs_config import VerbsConfig, choose_ports, merge


def gid(index: int, address: str, kind: int = ROCE_V2) -> Gid:
    ip = ipaddress.ip_address(address)
    raw = ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed
    return Gid(index, raw, kind, "eth0")


USUAL = [
    gid(0, "fe80::1", ROCE_V1),
    gid(1, "fe80::1"),
    gid(2, "10.0.0.1", ROCE_V1),
    gid(3, "10.0.0.1"),
]


def pick(rows: list[Gid], **options: object) -> int:
    return choose_gid(rows, "device x port 1", **options)[0].index  # type: ignore[arg-type]


def test_the_routable_v2_entry_is_taken() -> None:
    assert pick(USUAL) == 3
    assert pick(USUAL[::-1]) == 3
    assert pick(USUAL, version=1) == 2


def test_all_ipv6_takes_the_routable_one_and_says_so() -> None:
    rows = [gid(0, "fe80::1", ROCE_V1), gid(1, "fe80::1"), gid(2, "2001:db8::1", ROCE_V1)]
    rows.append(gid(3, "2001:db8::1"))
    chosen, note = choose_gid(rows, "device x port 1")
    assert chosen.index == 3 and "no IPv4" in note
    assert pick(rows, family="AF_INET6") == 3
    with pytest.raises(TransportError, match=r"no GID fits(.|\n)*2001:db8::1"):
        pick(rows, family="AF_INET")


@pytest.mark.parametrize(
    "rows", [[], [gid(0, "fe80::1"), gid(1, "fe80::2", ROCE_V1)], [gid(0, "10.0.0.1", ROCE_V1)]]
)
def test_nothing_fits_prints_the_table(rows: list[Gid]) -> None:
    with pytest.raises(TransportError) as caught:
        pick(rows)
    text = str(caught.value)
    assert "device x port 1" in text and "NCCL_IB_GID_INDEX" in text
    for row in rows:
        assert str(row.address) in text
    if not rows:
        assert "empty" in text


def test_an_index_that_was_asked_for_is_used_and_remarked_on() -> None:
    chosen, note = choose_gid(USUAL, "device x port 1", index=0)
    assert chosen.index == 0 and "link-local" in note and "RoCE v1" in note
    assert choose_gid(USUAL, "device x port 1", index=3)[1] == ""
    with pytest.raises(TransportError, match="NCCL_IB_GID_INDEX=7"):
        pick(USUAL, index=7)


def test_ranges() -> None:
    rows = [*USUAL, gid(4, "192.168.1.1"), gid(5, "2001:db8::1")]
    assert pick(rows, address_range="192.168.0.0/16") == 4
    assert pick(rows, address_range="2001:db8::/32") == 5
    assert pick(rows, family="AF_INET6", address_range="2001:db8::/32") == 5
    with pytest.raises(TransportError, match="in 172"):
        pick(rows, address_range="172.16.0.0/12")
    with pytest.raises(InputError, match="is not of AF_INET6"):
        pick(rows, family="AF_INET6", address_range="10.0.0.0/8")
    with pytest.raises(InputError, match="NCCL_IB_ADDR_RANGE"):
        pick(rows, address_range="nonsense")
    with pytest.raises(InputError, match="AF_INET or AF_INET6"):
        pick(rows, family="inet")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fe80::1", "10.0.0.1", "169.254.1.1", "2001:db8::1", "::"]),
            st.sampled_from([ROCE_V1, ROCE_V2]),
        ),
        max_size=8,
    ),
    st.sampled_from([1, 2]),
)
def test_never_link_local_nor_of_another_version(
    table: list[tuple[str, int]], version: int
) -> None:
    rows = [gid(i, address, kind) for i, (address, kind) in enumerate(table)]
    try:
        chosen, _ = choose_gid(rows, "here", version=version)
    except TransportError:
        good = [r for r in rows if not r.link_local and r.kind == version]
        assert not good
    else:
        assert not chosen.link_local and chosen.kind == version


class Env:
    """A stand-in for `genie.Nccl` with the two methods that are read."""

    def __init__(self, **env: str) -> None:
        self.env = env

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.env.get(name, default)

    def get_int(self, name: str, default: int) -> int:
        return int(self.env[name]) if name in self.env else default


def test_settings_of_nccl() -> None:
    assert VerbsConfig.from_nccl(Env()) == VerbsConfig()
    config = VerbsConfig.from_nccl(
        Env(
            NCCL_IB_QPS_PER_CONNECTION="4",
            NCCL_IB_SPLIT_DATA_ON_QPS="1",
            NCCL_IB_TIMEOUT="22",
            NCCL_IB_TC="106",
            NCCL_IB_SL="-1",
            NCCL_IB_AR_THRESHOLD="-2",
            NCCL_IB_ADAPTIVE_ROUTING="-2",
            NCCL_BUFFSIZE="8388608",
        )
    )
    assert (config.qps_per_connection, config.split_data, config.timeout) == (4, True, 22)
    assert (config.tc, config.sl, config.ar_threshold, config.adaptive_routing) == (
        106,
        0,
        8192,
        -1,
    )
    assert config.buffer_bytes == 8388608
    assert VerbsConfig.from_options(config.to_options()) == config
    with pytest.raises(InputError, match="timeout is 40"):
        VerbsConfig.from_nccl(Env(NCCL_IB_TIMEOUT="40"))
    with pytest.raises(InputError, match="bogus"):
        VerbsConfig.from_options({"bogus": 1})


def test_the_real_nccl_object_serves() -> None:
    from genie.replay.nccl.env import Nccl

    config = VerbsConfig.from_nccl(Nccl(env={"NCCL_IB_GID_INDEX": 3, "NCCL_IB_HCA": "mlx5"}))
    assert config.gid_index == 3 and config.hca == "mlx5"


def device(name: str, active: bool = True, link: str = "ethernet") -> dict:  # type: ignore[type-arg]
    table = [(row.index, row.raw, row.kind, row.interface) for row in USUAL]
    port = {"number": 1, "active": active, "mtu": 4096, "link_layer": link, "gids": table}
    return {"name": name, "ports": [port]}


DEVICES = [device("mlx5_0"), device("mlx5_1"), device("mlx5_10", active=False), device("irdma0")]


def chosen(*names: str, **fields: object) -> list[str]:
    config = VerbsConfig(**fields)  # type: ignore[arg-type]
    return [str(port) for port in choose_ports(DEVICES, names, config)[0]]


def test_ports() -> None:
    assert chosen("mlx5_1") == ["mlx5_1:1"]
    assert chosen("mlx5_1:1", "irdma0") == ["mlx5_1:1", "irdma0:1"]
    assert chosen() == ["mlx5_0:1", "mlx5_1:1", "irdma0:1"]
    assert chosen(hca="mlx5") == ["mlx5_0:1", "mlx5_1:1"]
    assert chosen(hca="=mlx5_1") == ["mlx5_1:1"]
    assert chosen(hca="^mlx5") == ["irdma0:1"]
    assert chosen(hca="^=mlx5_1,irdma0") == ["mlx5_0:1"]
    with pytest.raises(DeviceNotFoundError, match=r"no RDMA device 'rxe0'.*mlx5_0") as caught:
        chosen("rxe0")
    assert caught.value.found == ["mlx5_0", "mlx5_1", "mlx5_10", "irdma0"]  # type: ignore[attr-defined]
    with pytest.raises(DeviceNotFoundError, match=r"no active port.*port 1 down"):
        chosen("mlx5_10")
    with pytest.raises(DeviceNotFoundError, match="no active port 2"):
        chosen("mlx5_0:2")
    with pytest.raises(DeviceNotFoundError, match="NCCL_IB_HCA=nothing"):
        chosen(hca="nothing")
    with pytest.raises(InputError, match="port number"):
        chosen("mlx5_0:x")


def test_merged_nics() -> None:
    ports, _ = choose_ports(DEVICES, ["mlx5_0", "mlx5_1", "irdma0"], VerbsConfig())
    assert [len(nic) for nic in merge(ports, None)] == [1, 1, 1]
    assert [len(nic) for nic in merge(ports, "mlx5_0,mlx5_1")] == [2, 1]
    assert [len(nic) for nic in merge(ports, "mlx5_0,irdma0;other")] == [2, 1]
    with pytest.raises(InputError, match="twice"):
        merge(ports, "mlx5_0,mlx5_1;mlx5_1")


def test_infiniband_needs_no_gid() -> None:
    ports, _ = choose_ports([device("mlx4_0", link="infiniband")], [], VerbsConfig())
    assert ports[0].gid is None


def test_every_failure_is_a_genie_error() -> None:
    assert issubclass(TransportError, GenieError)
