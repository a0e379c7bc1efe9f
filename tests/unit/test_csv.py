"""CSV cut into pieces anywhere gives the same rows, and broken rows are named by line."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freewheel.errors import ConfigError, DataError
from freewheel.streams import load
from freewheel.streams.csv import csv_rows, file_chunks

NASTY = (
    "\ufeffname,note,price\r\n"
    "\r\n"
    '"Müller, A.","two\r\nlines",1\r\n'
    "   \r\n"
    'plain,"a ""quote""",2\r\n'
    "\n"
    "snow\u2028man ☃\x0b,,3\n"
    "😀,last,4"
).encode()
NASTY_ROWS = [
    (1, ["name", "note", "price"]),
    (3, ["Müller, A.", "two\r\nlines", "1"]),
    (6, ["plain", 'a "quote"', "2"]),
    (8, ["snow\u2028man ☃\x0b", "", "3"]),
    (9, ["😀", "last", "4"]),
]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", range(1, 65))
def test_scenario_7_any_chunk_size_gives_the_same_rows(size: int, tmp_path: Path) -> None:
    expected = [fields for _, fields in NASTY_ROWS]
    assert [r.fields for r in csv_rows(pieces(NASTY, size), "x.csv")] == expected
    path = tmp_path / "nasty.csv"
    path.write_bytes(NASTY)
    assert [r.fields for r in csv_rows(file_chunks(path, size), "x.csv")] == expected


def test_rows_know_the_line_they_start_on() -> None:
    got = [(row.line, row.fields) for row in csv_rows([NASTY], "x.csv")]
    assert got == NASTY_ROWS


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.text(st.sampled_from('a1, "\r\né☃;'), max_size=6), min_size=2, max_size=3),
        max_size=6,
    ),
    st.sampled_from(["\r\n", "\n", "\r"]),
    st.booleans(),
    st.integers(1, 64),
)
def test_what_the_standard_library_wrote_is_read_back(
    rows: list[list[str]], end: str, mark: bool, size: int
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    data = file.getvalue().encode("utf-8-sig" if mark else "utf-8")
    assert [row.fields for row in csv_rows(pieces(data, size), "x.csv")] == rows


@pytest.mark.parametrize("size", [1, 3, 64])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'a,b\n1,"2\n3,4\n', r"x.csv, line 2: not a row of CSV \(unexpected end of data\)"),
        (b'a,b\n1,2\n"x"y,4\n', "x.csv, line 3: not a row of CSV"),
        (b"a,b\n1,2\n\xff,4\n", "x.csv, line 3: byte 0xff is not utf-8; save"),
        (b"a,b\n1,\xe2\x98", "x.csv, line 2: byte 0xe2 is not utf-8; save"),
    ],
)
def test_broken_rows_are_named_by_line(data: bytes, message: str, size: int) -> None:
    with pytest.raises(DataError, match=message):
        list(csv_rows(pieces(data, size), "x.csv"))


def test_other_encodings_are_read_and_unknown_ones_refused() -> None:
    rows = csv_rows(["Zürich,1\r\n".encode("latin-1")], "x.csv", encoding="latin-1")
    assert [row.fields for row in rows] == [["Zürich", "1"]]
    with pytest.raises(ConfigError, match="unknown encoding 'utf-9'"):
        list(csv_rows([], "x.csv", encoding="utf-9"))


def test_nothing_gives_no_rows() -> None:
    assert list(csv_rows([], "x.csv")) == []
    assert list(csv_rows([b"\xef\xbb", b"\xbf", b"\r", b"\n\n"], "x.csv")) == []


def write(folder: Path, text: str, name: str = "t.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


def test_the_csv_data_set_reads_features_and_classes(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 3},{i / 2}\r\n" for i in range(40))
    path = write(tmp_path, "a, kind ,b\r\n" + rows)
    source = load("csv", path=path, label="kind")
    assert (source.spec.input_shape, source.spec.num_classes) == ((2,), 3)
    parts = (source.train, source.validation, source.test)
    assert [len(part) for part in parts] == [32, 4, 4]
    seen = []
    for part in parts:
        everything = torch.arange(len(part))
        x, y = part.inputs(everything), part.targets(everything)
        assert x.dtype == torch.float32
        assert torch.equal(x[:, 1], x[:, 0] / 2)
        assert torch.equal(y, x[:, 0].to(torch.int64) % 3)
        seen += x[:, 0].tolist()
    assert sorted(seen) == list(range(40))


def test_classes_are_ordered_by_value_and_words_by_alphabet(tmp_path: Path) -> None:
    numbers = load("csv", path=write(tmp_path, "x,y\n0,10\n0,9\n0,-1\n"), label="y")
    assert numbers.train.targets(torch.arange(3)).tolist() == [2, 1, 0]
    words = load("csv", path=write(tmp_path, "x,y\n0,dog\n0,cat\n0,dog\n"), label="y")
    assert words.train.targets(torch.arange(3)).tolist() == [1, 0, 1]


def test_a_regression_from_chosen_columns_with_its_own_test_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a;b;c\n1;2;3.5\n4;5;6.5\n")
    test_path = write(tmp_path, "c;b;a\n9.5;8;7\n", "test.csv")
    source = load(
        "csv", path=path, label="c", features=["b"], task="regression", delimiter=";",
        test_path=test_path,
    )  # fmt: skip
    assert (source.spec.num_classes, source.spec.target_shape) == (None, (1,))
    assert source.train.inputs(torch.arange(2)).tolist() == [[2.0], [5.0]]
    assert source.train.targets(torch.arange(2)).tolist() == [[3.5], [6.5]]
    assert source.test.inputs(torch.arange(1)).tolist() == [[8.0]]
    assert source.test.targets(torch.arange(1)).tolist() == [[9.5]]
    assert len(source.validation) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows; the first must name the columns"),
        ("\r\n\r\n", "has no rows"),
        ("x,y\n", "has a header but no rows"),
        ("x,y\n1,2\n3\n", "line 3: 1 fields, but the header .line 1. has 2"),
        ("x,y\n1,2\nsix,2\n", "line 3, column 'x': 'six' is not a number"),
        ("x,y\n,2\n", "line 2, column 'x': '' is not a number"),
        ("x,x,y\n1,1,2\n", "column 'x' is named twice"),
    ],
)
def test_broken_tables_are_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        load("csv", path=write(tmp_path, text), label="y")


def test_a_class_that_was_never_trained_on_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "x,y\n1,cat\n2,dog\n")
    other = write(tmp_path, "x,y\n1,cat\n2,cow\n", "test.csv")
    with pytest.raises(DataError, match=r"test\.csv, line 3, column 'y': class 'cow'"):
        load("csv", path=path, label="y", test_path=other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label": "z"}, "no column 'z'; known: x, y"),
        ({"label": "y", "features": ["xx"]}, "no column 'xx'; did you mean 'x'"),
        ({"label": "y", "features": []}, "no column beside the label"),
        ({"label": "y", "task": "sorting"}, "unknown task 'sorting'"),
        ({"label": "y", "delimiter": ""}, "delimiter must be one character"),
        ({"label": "y", "chunk_bytes": 0}, "chunk_bytes must be >= 1"),
        ({"label": "y", "colour": 1}, "no setting 'colour'"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    settings: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        load("csv", path=write(tmp_path, "x,y\n1,2\n"), **settings)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*none\.csv"):
        load("csv", path=str(tmp_path / "none.csv"), label="y")
