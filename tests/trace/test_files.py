"""Files: rank sets, gzip, truncation, groups beside the traces (bug reports 12 to 20)."""

from __future__ import annotations

import gzip
import json
import os
import re
import struct
from pathlib import Path

import pytest

from genie.errors import GenieError, InputError, TraceError
from genie.trace import load

from trace import wirebytes as w  # isort: skip

ONE = w.framed(w.HEAD_V4, w.coll_v4(1), w.coll_v4(2, data=(1,)), w.v4(3, "end", 4, data=(2, 1)))


def put(folder: Path, *ranks: bytes, prefix: str = "t") -> Path:
    for rank, data in enumerate(ranks):
        (folder / f"{prefix}.{rank}.et").write_bytes(data)
    return folder


def told(path: Path, **options) -> str:
    """Every reason, whether load or check gives it."""
    try:
        trace = load(path, **options)
    except TraceError as error:
        return str(error)
    return "\n".join(problem.message for problem in trace.problems())


def test_cut_at_every_byte(tmp_path: Path) -> None:
    boundaries = []
    at = 0
    for record in (
        w.HEAD_V4,
        w.coll_v4(1),
        w.coll_v4(2, data=(1,)),
        w.v4(3, "end", 4, data=(2, 1)),
    ):
        at += len(w.framed(record))
        boundaries.append(at)
    other = put(tmp_path, ONE, ONE) / "t.0.et"
    for cut in range(len(ONE)):
        other.write_bytes(ONE[:cut])
        reasons = told(tmp_path)
        if cut == 0:
            assert "empty file" in reasons
        elif cut in boundaries[:2]:
            # Invisible in the file itself; the other rank has more collectives.
            assert "differs: rank 0 has only" in reasons, cut
        elif cut == boundaries[2]:
            assert reasons == ""  # only a COMP node is gone: nothing can tell
        else:
            assert "truncated after" in reasons, cut
            start = max([0, *(b for b in boundaries if b <= cut)])
            assert f"byte {start} " in reasons, cut


def test_dependencies_tell_of_a_missing_tail(tmp_path: Path) -> None:
    data = w.framed(w.HEAD_V4, w.v4(1, "a", 4, data=(9,)))
    assert "depends on node 9, which the file does not have" in told(put(tmp_path, data))


def test_a_length_without_a_record_is_no_phantom_node(tmp_path: Path) -> None:
    trace = load(put(tmp_path, ONE + b"\x05"))
    assert trace.n == 3
    assert "should have 5 bytes" in trace.problems()[0].message


def test_half_a_varint_at_the_end(tmp_path: Path) -> None:
    reasons = told(put(tmp_path, ONE + b"\x80"))
    assert "ends within its length" in reasons


def test_a_zero_length_is_an_empty_message(tmp_path: Path) -> None:
    # As metadata it says nothing; as a node it has id 0 and no type.
    good = load(put(tmp_path, b"\0" + w.framed(w.coll_v4(1))))
    assert good.n == 1
    good.check()
    bad = load(put(tmp_path, ONE + b"\0"))
    assert bad.n == 4
    with pytest.raises(TraceError, match="nodes without a node type"):
        bad.check()


def test_gzip_under_any_name(tmp_path: Path) -> None:
    packed = gzip.compress(ONE)
    trace = load(put(tmp_path, packed, packed))
    trace.check()
    assert trace.ranks[0].names() == ["coll1", "coll2", "end"]
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "t.0.et.gz").write_bytes(packed)
    load(tmp_path / "two").check()


def test_gzip_cut_short(tmp_path: Path) -> None:
    data = w.framed(w.HEAD_V4, *(w.coll_v4(k) for k in range(1, 300)))
    packed = gzip.compress(data)
    assert "gzip data cut short" in told(put(tmp_path, packed[: len(packed) // 2]))
    assert "after the end of the gzip data" in told(put(tmp_path, packed + b"junk"))


def test_two_gzip_members_are_one_file(tmp_path: Path) -> None:
    half = len(ONE) // 2
    put(tmp_path, gzip.compress(ONE[:half]) + gzip.compress(ONE[half:]))
    load(tmp_path).check()


def test_empty_text_and_missing(tmp_path: Path) -> None:
    assert "empty file" in told(put(tmp_path, b""))
    assert "not a Chakra trace but text" in told(put(tmp_path, b"name: x\nid: 3\n" * 50))
    assert "no trace at" in told(tmp_path / "nothing")
    (tmp_path / "bare").mkdir()
    assert "it is empty" in told(tmp_path / "bare")


def test_one_bad_file_of_many_leaves_the_others_readable(tmp_path: Path) -> None:
    trace = load(put(tmp_path, ONE, b"hello, this is no trace at all", ONE, b""))
    assert [rank.n for rank in trace.ranks] == [3, 0, 3, 0]
    reasons = [problem.message for problem in trace.problems()]
    assert "not a Chakra trace but text" in reasons[0]
    assert "empty file" in reasons[1]


def test_a_gap_in_the_ranks(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        (tmp_path / f"t.{rank}.et").write_bytes(ONE)
    trace = load(tmp_path)
    assert trace.world_size == 4
    with pytest.raises(TraceError, match=r"3 files for ranks 0 to 3; missing: rank 2"):
        trace.check()


def test_files_of_no_one_set(tmp_path: Path) -> None:
    (tmp_path / "t.0.et").write_bytes(ONE)
    (tmp_path / "t.1000000000.et").write_bytes(ONE)
    assert "not the files of one set" in told(tmp_path)


def test_two_sets_in_a_folder(tmp_path: Path) -> None:
    put(tmp_path, ONE, prefix="a")
    put(tmp_path, ONE, ONE, prefix="b")
    assert "holds 2 trace sets" in told(tmp_path)
    assert load(tmp_path / "b").world_size == 2


def test_one_rank_twice(tmp_path: Path) -> None:
    (tmp_path / "t.1.et").write_bytes(ONE)
    (tmp_path / "t.01.et").write_bytes(ONE)
    assert "two files for rank 1" in told(tmp_path)


def test_ten_ranks_sort_as_numbers(tmp_path: Path) -> None:
    put(tmp_path, *(w.framed(w.HEAD_V4, w.v4(k, "n", 4)) for k in range(12)))
    assert [int(rank.id[0]) for rank in load(tmp_path).ranks] == list(range(12))


ARMS = {
    "int32": w.number(7, 4096), "int64": w.number(9, 4096), "uint32": w.number(11, 4096),
    "uint64": w.number(13, 4096), "sint32": w.number(15, 8192), "sint64": w.number(17, 8192),
    "fixed32": b"\x9d\x01" + struct.pack("<I", 4096),
    "fixed64": b"\xa9\x01" + struct.pack("<Q", 4096),
    "sfixed32": b"\xbd\x01" + struct.pack("<i", 4096),
    "sfixed64": b"\xc9\x01" + struct.pack("<q", 4096),
    "double": b"\x19" + struct.pack("<d", 4096.0), "float": b"\x2d" + struct.pack("<f", 4096.0),
}  # fmt: skip


@pytest.mark.parametrize("arm", ARMS)
def test_any_numeric_arm_holds_a_size(tmp_path: Path, arm: str) -> None:
    record = w.v4(1, "c", 7, w.int_v4("comm_type", 0), w.attr("comm_size", ARMS[arm]))
    trace = load(put(tmp_path, w.framed(w.HEAD_V4, record)))
    assert int(trace.ranks[0].nbytes[0]) == 4096
    trace.check()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (w.number(9, -8), "comm_size -8 is negative"),
        (b"\x19" + struct.pack("<d", 0.5), "comm_size 0.5 is no whole number"),
        (b"\x19" + struct.pack("<d", float("nan")), "comm_size nan is negative or too large"),
        (w.text(29, "4096"), "comm_size '4096' is no number"),
        (w.number(13, (1 << 64) - 1), "is negative or too large"),
    ],
)
def test_what_is_no_size_is_refused(tmp_path: Path, value: bytes, why: str) -> None:
    record = w.v4(1, "c", 7, w.int_v4("comm_type", 0), w.attr("comm_size", value))
    trace = load(put(tmp_path, w.framed(w.HEAD_V4, record)))
    with pytest.raises(TraceError, match="node 1") as caught:
        trace.check()
    assert why in str(caught.value)
    assert len(trace.problems()) == 1


def group_set(folder: Path, name: str = "tp") -> Path:
    record = w.v4(1, "c", 7, w.int_v4("comm_type", 0), w.int_v4("comm_size", 8),
                  w.attr("pg_name", w.text(29, name)))  # fmt: skip
    return put(folder, *(w.framed(w.HEAD_V4, record) for _ in range(4)))


def test_groups_beside_the_traces(tmp_path: Path) -> None:
    group_set(tmp_path)
    assert "groups that nothing defines: 'tp' (4 nodes)" in told(tmp_path)
    assert told(tmp_path, undefined_group="world") == ""
    (tmp_path / "notes.json").write_text('{"made": "by hand", "list": [1]}')
    (tmp_path / "any.json").write_text('{"tp": [3, 1, 2, 0]}')
    trace = load(tmp_path)
    trace.check()
    assert trace.members(int(trace.ranks[0].group[0])) == (3, 1, 2, 0)
    (tmp_path / "other.json").write_text('{"tp": [0, 1, 2, 3]}')
    assert "2 files map names to groups" in told(tmp_path)
    assert told(tmp_path, groups=tmp_path / "other.json") == ""
    assert told(tmp_path, groups={"tp": [0, 1, 2, 3]}) == ""


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ({"tp": [0, 1, 2, 4]}, "lists rank 4, but there are 4 ranks"),
        ({"tp": [0, 1, 2]}, "which does not have the rank"),
        ({"tp": [0, 1, 2, 2]}, "lists rank 2 twice"),
        ({"tp": [0, 1, -2]}, "lists -2, not a rank"),
        ({"tp": [0, 1, "2"]}, "lists '2', not a rank"),
        ({"0": [0, 1, 2, 3]}, "groups that nothing defines: 'tp'"),
    ],
)
def test_bad_groups(tmp_path: Path, groups: dict, why: str) -> None:
    group_set(tmp_path)
    (tmp_path / "groups.json").write_text(json.dumps(groups))
    assert why in told(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("x.groups.json", '{"tp": [0, 1, 2, 3]', "not readable as JSON"),
        ("x.groups.json", '["tp"]', "no JSON that maps names to lists of ranks"),
        ("comm_group.json", '{"tp": 4}', "group 'tp' is 4, not a list of ranks"),
        ("g.json", '{"0": [0, 1, 2, 3], "1": "all"}', "group '1' is 'all', not a list"),
        ("g.json", '{"tp": [0, 1, 2, 3]', "g.json might, but is not readable as JSON"),
        ("g.json", "\x00\x01", "g.json might, but is not readable as JSON"),
    ],
)
def test_a_group_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, text: str, why: str
) -> None:
    group_set(tmp_path)
    (tmp_path / name).write_text(text)
    reasons = told(tmp_path)
    assert why in reasons
    assert name in reasons
    with pytest.raises(GenieError, match=re.escape(name)):
        load(tmp_path, groups=tmp_path / name)
    assert told(tmp_path, groups={"tp": [0, 1, 2, 3]}) == ""


def test_a_broken_link_where_groups_might_be(tmp_path: Path) -> None:
    group_set(tmp_path)
    (tmp_path / "g.json").symlink_to(tmp_path / "absent")
    assert "g.json might, but is No such file" in told(tmp_path)


def test_a_file_that_may_say_groups_of_a_set_without_any(tmp_path: Path) -> None:
    put(tmp_path, ONE)
    (tmp_path / "settings.json").write_text("{broken")
    trace = load(tmp_path)
    trace.check()
    assert any("settings.json was passed over" in text for text in trace.warnings)
    (tmp_path / "settings.json").rename(tmp_path / "groups.json")
    assert "groups.json: not readable as JSON" in told(tmp_path)


def test_a_small_gzip_file_of_groups_cannot_fill_the_memory(tmp_path: Path) -> None:
    put(tmp_path, ONE)
    spaces = gzip.compress(b" " * (300 << 20), compresslevel=1)
    (tmp_path / "g.json.gz").write_bytes(spaces)
    trace = load(tmp_path)
    assert trace.groups == {}


@pytest.mark.parametrize("groups", [3, ["tp"], {"tp": 3}, {"tp": "0123"}, {"tp": [True]}])
def test_groups_of_a_wrong_type(tmp_path: Path, groups: object) -> None:
    put(tmp_path, ONE)
    with pytest.raises(GenieError, match="groups"):
        load(tmp_path, groups=groups)  # type: ignore[arg-type]


def test_a_set_that_cannot_be_replayed_says_so_in_its_repr(tmp_path: Path) -> None:
    group_set(tmp_path)
    trace = load(tmp_path)
    assert repr(trace).endswith("v0.0.4, 1 problem: see problems()>")
    assert "groups that nothing defines" in trace._repr_html_()
    good = load(tmp_path, groups={"tp": [0, 1, 2, 3]})
    assert repr(good).endswith("v0.0.4>")


def test_group_names_are_text(tmp_path: Path) -> None:
    group_set(tmp_path, "0.0")
    (tmp_path / "groups.json").write_text('{"0": [0, 1, 2, 3]}')
    assert "'0.0'" in told(tmp_path)


def test_a_group_defined_twice_in_one_file(tmp_path: Path) -> None:
    group_set(tmp_path)
    (tmp_path / "groups.json").write_text('{"tp": [0, 1, 2, 3], "tp": [0, 1]}')
    assert "defined twice: tp" in told(tmp_path)


def test_the_groups_of_another_set_are_not_ours(tmp_path: Path) -> None:
    group_set(tmp_path)
    put(tmp_path, ONE, prefix="b")
    (tmp_path / "t.groups.json").write_text('{"tp": [0, 1, 2, 3]}')
    (tmp_path / "b.groups.json").write_text('{"x": [0]}')
    assert told(tmp_path / "t") == ""
    assert list(load(tmp_path / "b").groups) == ["x"]


def test_metadata_nodes_define_groups(tmp_path: Path) -> None:
    listed = [
        {"pg_name": "tp", "pg_desc": "x", "ranks": [1, 0], "group_size": 2, "group_count": 2},
        {"pg_name": "all", "ranks": [], "group_size": 2, "group_count": 2},
    ]
    values = str([json.dumps(listed)])
    node = w.v4(5, "## process_group:init ##", 1, w.text(8, w.text(1, values)))
    used = w.v4(1, "c", 7, w.int_v4("comm_type", 0), w.int_v4("comm_size", 8),
                w.attr("pg_name", w.text(29, "tp")))  # fmt: skip
    data = w.framed(w.HEAD_V4, node, used)
    (tmp_path / "groups.json").write_text('{"tp": [0], "dp": [1]}')
    trace = load(put(tmp_path, data, data))
    assert trace.groups == {"tp": (1, 0), "dp": (1,), "all": (0, 1)}
    trace.check()
    cut = w.v4(5, "## process_group:init ##", 1, w.text(8, w.text(1, values[:-20])))
    trace = load(put(tmp_path, w.framed(w.HEAD_V4, cut), w.framed(w.HEAD_V4, cut)))
    assert any("defines no groups that can be read" in text for text in trace.warnings)


def test_options_that_cannot_be_used(tmp_path: Path) -> None:
    put(tmp_path, ONE)
    with pytest.raises(InputError, match="undefined_group"):
        load(tmp_path, undefined_group="none")
    with pytest.raises(InputError, match="not an element type: 'floaty'"):
        load(tmp_path, elements="floaty")
    with pytest.raises(InputError, match="no group file"):
        load(tmp_path, groups=tmp_path / "absent.json")


def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    trace = load(put(tmp_path, ONE))
    (tmp_path / "t.0.et").write_bytes(b"")
    with pytest.raises(TraceError, match="changed since it was loaded"):
        trace.ranks[0].names()


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    trace = load(put(tmp_path, ONE))
    (tmp_path / "t.0.et").unlink()
    with pytest.raises(TraceError, match=r"t\.0\.et: No such file"):
        trace.ranks[0].name(0)


def test_an_entry_of_the_set_that_is_no_file_is_refused(tmp_path: Path) -> None:
    last = tmp_path / "t.1.et"
    for make, what in (
        (last.mkdir, "a folder"),
        (lambda: os.mkfifo(last), "a pipe"),
        (lambda: last.symlink_to(tmp_path / "gone"), "a link to what does not exist"),
    ):
        put(tmp_path, ONE)
        make()
        reasons = told(tmp_path)
        assert str(last) in reasons
        assert what in reasons
        last.rmdir() if last.is_dir() else last.unlink()


def test_a_folder_named_like_a_rank_is_no_set_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "results.0.json").mkdir()
    assert told(put(tmp_path, ONE, ONE)) == ""


def test_a_set_without_any_node_is_refused(tmp_path: Path) -> None:
    empty = w.framed(w.HEAD_V4)
    assert "no rank has a node" in told(put(tmp_path, empty, empty))
    other = w.framed(w.HEAD_V4, w.v4(1, "k", 4))
    assert told(put(tmp_path, empty, other)) == ""


def test_a_group_file_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    put(tmp_path, ONE, ONE)
    (tmp_path / "g.json").write_text('{"3": [0, 1]}', encoding="utf-8-sig")
    assert load(tmp_path).groups == {"3": (0, 1)}


def test_a_file_that_ends_in_zeros_is_refused_at_once(tmp_path: Path) -> None:
    put(tmp_path, ONE, ONE)
    with (tmp_path / "t.1.et").open("r+b") as file:
        file.truncate(1 << 30)
    reasons = told(tmp_path)
    assert "the last 4096 bytes are zeros" in reasons
    assert str(tmp_path / "t.1.et") in reasons
