"""Reading CSV from bytes that arrive in pieces of any size.

The bytes may come from a file or over a network, cut anywhere: within a character, between the
two bytes of a line end, inside quotes. The rows are the same for every way of cutting them.

References:
    Y. Shafranovich, RFC 4180: Common format and MIME type for comma-separated values files, 2005.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from freewheel.errors import ConfigError, DataError

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)")
_UNDECODED = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row: the line of the file that it starts on, from 1, and its fields."""

    line: int
    fields: list[str]


def file_chunks(path: Path, chunk_bytes: int = 1 << 16) -> Iterator[bytes]:
    """Read a file piece by piece.

    Args:
        path: of the file.
        chunk_bytes: most bytes in a piece, at least 1.

    Yields:
        The pieces; none is empty.

    Raises:
        ConfigError: ``chunk_bytes`` is below 1.
        DataError: there is no such file, or it cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freewheel.streams.csv import file_chunks
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "x.csv"
        ...     _ = path.write_bytes(b"a,b\\n1,2")
        ...     list(file_chunks(path, chunk_bytes=5))
        [b'a,b\\n1', b',2']
    """
    if chunk_bytes < 1:
        raise ConfigError(f"chunk_bytes must be >= 1, got {chunk_bytes}")
    try:
        with path.open("rb") as file:
            while chunk := file.read(chunk_bytes):
                yield chunk
    except FileNotFoundError as error:
        raise DataError(
            f"there is no file {path} (looked for in {Path.cwd()}): check the path"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error}): check what it is and who may"
        ) from error


def csv_rows(
    chunks: Iterable[bytes], name: str, delimiter: str = ",", encoding: str = "utf-8-sig"
) -> Iterator[CsvRow]:
    r"""Read rows from pieces of a CSV file.

    Lines end in LF, CRLF or CR; a byte-order mark and blank lines are skipped; a quoted field may
    hold delimiters, doubled quotes and line ends; the last line needs no end.

    Args:
        chunks: the bytes, cut anywhere.
        name: of the file, for messages.
        delimiter: one character between fields.
        encoding: of the bytes; the default is UTF-8 with or without a byte-order mark.

    Yields:
        The rows that are not blank.

    Raises:
        ConfigError: an unknown encoding.
        DataError: names the line that is not of this encoding, or whose quotes are wrong.

    Example:
        >>> from freewheel.streams.csv import csv_rows
        >>> [row.fields for row in csv_rows([b'a,"b\r', b'\nc"\r', b"\n\r\n1,2"], "x.csv")]
        [['a', 'b\r\nc'], ['1', '2']]
    """
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ConfigError(f"unknown encoding {encoding!r}; for example utf-8 or latin-1") from None
    reader = csv.reader(_lines(chunks, name, encoding), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{name}, line {line}: not a row of CSV ({error}); a field with a quote, a "
                f"{delimiter!r} or a line end in it must be in quotes, and a quote in it doubled"
            ) from error
        if fields and not (len(fields) == 1 and fields[0].isspace()):
            yield CsvRow(line, fields)


def _lines(chunks: Iterable[bytes], name: str, encoding: str) -> Iterator[str]:
    # Bytes of another encoding become lone surrogates here, so that they are refused at their
    # line and not at their chunk. The newline decoder holds a CR back until it is known whether
    # a LF follows.
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder(encoding)("surrogateescape"), translate=False
    )
    rest, number = "", 0
    for chunk, last in _marked(chunks):
        rest += decoder.decode(chunk, final=last)
        end = 0
        for match in _LINE.finditer(rest):
            end = match.end()
            number += 1
            yield _checked(match.group(), name, number, encoding)
        rest = rest[end:]
    if rest:
        yield _checked(rest, name, number + 1, encoding)


def _checked(line: str, name: str, number: int, encoding: str) -> str:
    bad = _UNDECODED.search(line)
    if bad:
        raise DataError(
            f"{name}, line {number}: byte {ord(bad.group()) - 0xDC00:#04x} is not "
            f"{encoding.removesuffix('-sig')}; save the file as UTF-8, or give its encoding"
        )
    return line


def _marked(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    for chunk in chunks:
        yield chunk, False
    yield b"", True
