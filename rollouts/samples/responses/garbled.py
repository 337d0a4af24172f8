"""Finds garbled text: characters that show that bytes were lost or decoded with the wrong encoding, and noise.

A response is garbled if one of these holds in its first or last 512 characters:

- damage: 3 or more replacement characters (U+FFFD, lone surrogates), control characters or noncharacters. Not counted:
  tab, line ends, form feed, escape (colours of a terminal), U+0085, and replacement characters at the very end, where a
  length limit cuts a character
- unknown characters: 8 or more of private use or without a meaning in Unicode, outside the blocks of emoji
- mojibake: UTF-8 that was read as Latin-1 or Windows-1252: one sequence for a character of three or four bytes (`â€™`),
  or two for a character of two bytes (`Ã©`)
- noise: 6 or more pairs of adjacent letters of different scripts, of three or more scripts. Greek (maths) does not
  count, nor do Latin letters next to Chinese, Japanese or Korean ones, which use no spaces

Chinese, Arabic, code, maths and emoji have none of these.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from rollouts.samples.values import replace_surrogates

EDGE_CHARS = 512
MIN_DAMAGED = 3
MIN_UNKNOWN = 8
MIN_TOUCHING_PAIRS = 6
MIN_SCRIPTS = 3
MIN_SHORT_SEQUENCES = 2

# The class of a character: one of these or a script, and whether it may be a misread byte of UTF-8.
DAMAGED, UNKNOWN, CLASS_BITS, FIRST_BYTE, FOLLOWING_BYTE = 1, 2, 0x0F, 0x10, 0x20
LATIN, CJK, FIRST_SCRIPT = 3, 4, 3
PLAIN_CONTROLS = (0x09, 0x0A, 0x0C, 0x0D, 0x1B, 0x85)
PLAIN_BYTES = bytes([*PLAIN_CONTROLS[:-1], *range(32, 127)])
# Letters by script: Latin, CJK, Cyrillic, Arabic (with Syriac, Thaana), Hebrew, Indic, Thai and Lao, others.
SCRIPT_RANGES = (
    (LATIN, ((0x41, 0x5B), (0x61, 0x7B), (0xC0, 0xD7), (0xD8, 0xF7), (0xF8, 0x250), (0x1E00, 0x1F00))),
    (CJK, ((0x3041, 0x3100), (0x3105, 0x3130), (0x3131, 0x318F), (0x31F0, 0x3200), (0x3400, 0x4DC0), (0x4E00, 0xA000),
           (0xAC00, 0xD7A4), (0x20000, 0x32000))),
    (5, ((0x400, 0x530),)),
    (6, ((0x620, 0x64B), (0x671, 0x6D4), (0x710, 0x7B2))),
    (7, ((0x5D0, 0x5EB),)),
    (8, ((0x900, 0xE00),)),
    (9, ((0xE01, 0xE3B), (0xE81, 0xEBE))),
    (10, ((0x531, 0x588),)),
    (11, ((0x10A0, 0x1100),)),
    (12, ((0x1000, 0x1090), (0x1780, 0x17D4))),
    (13, ((0x1200, 0x13A0),)),
)  # fmt: skip
EMOJI_BLOCKS = range(0x1F000, 0x1FB00)
# What the bytes 0x80 to 0xBF, which follow the first byte of a character in UTF-8, are in Windows-1252 and in Latin-1.
FOLLOWING = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
LONG_SEQUENCE = re.compile(f"[à-ï][\x80-\xbf{FOLLOWING}]{{2}}|[ð-ô][\x80-\xbf{FOLLOWING}]{{3}}")
SHORT_SEQUENCE = re.compile(f"[ÂÃÄÅÎÏÐÑØÙ][\x80-\xbf{FOLLOWING}]")

Flags = npt.NDArray[np.bool_]
Classes = npt.NDArray[np.uint8]


def find_garbled(responses: Sequence[str]) -> Flags:
    """Returns True for each garbled response. A lone surrogate counts as the U+FFFD that the sample body stores."""
    edges = [get_edges(response) for response in responses]
    result = np.zeros(len(edges), np.bool_)
    if has_controls("".join(filter(str.isascii, edges))):
        for row, edge in enumerate(edges):
            result[row] = edge.isascii() and len(edge.encode().translate(None, PLAIN_BYTES)) >= MIN_DAMAGED
    rows = [row for row, edge in enumerate(edges) if not edge.isascii()]
    if rows:
        result[rows] = find_garbled_edges([edges[row].rstrip("\ufffd") for row in rows])
    return result


def get_edges(text: str) -> str:
    """A line end between the edges keeps apart what does not follow each other."""
    return text if len(text) <= 2 * EDGE_CHARS else f"{text[:EDGE_CHARS]}\n{text[-EDGE_CHARS:]}"


def has_controls(text: str) -> bool:
    """`text` is ASCII only. It is long, so this reads it few times."""
    points = np.frombuffer(text.encode(), np.uint8)
    low = np.count_nonzero(points < 32)
    plain = np.count_nonzero(points == 10)
    if low > plain:
        plain += sum(np.count_nonzero(points == point) for point in PLAIN_CONTROLS if point != 10)
    return bool(low > plain or np.count_nonzero(points == 127))


def find_garbled_edges(edges: list[str]) -> Flags:
    """The rule above, for texts that are not ASCII only, all at once."""
    joined = "\n".join(edges)
    try:
        encoded = joined.encode("utf-32-le")
    except UnicodeEncodeError:
        edges = [replace_surrogates(edge).rstrip("\ufffd") for edge in edges]
        encoded = "\n".join(edges).encode("utf-32-le")
    flags = get_classes()[np.frombuffer(encoded, np.uint32)]
    ends = np.cumsum([len(edge) + 1 for edge in edges])
    classes: Classes = (flags & CLASS_BITS).astype(np.uint8)

    def count(positions: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        return np.bincount(np.searchsorted(ends, positions, "right"), minlength=len(edges))

    result: Flags = count(np.flatnonzero(classes == DAMAGED)) >= MIN_DAMAGED
    result |= count(np.flatnonzero(classes == UNKNOWN)) >= MIN_UNKNOWN
    pairs = find_touching_scripts(classes)
    for row in np.flatnonzero(count(pairs) >= MIN_TOUCHING_PAIRS):
        own = pairs[np.searchsorted(ends, pairs, "right") == row]
        result[row] |= len(np.union1d(classes[own], classes[own + 1])) >= MIN_SCRIPTS
    misread = np.flatnonzero((flags[:-1] & FIRST_BYTE != 0) & (flags[1:] & FOLLOWING_BYTE != 0))
    for row in np.flatnonzero(count(misread)):
        result[row] |= has_mojibake(edges[row])
    return result


def find_touching_scripts(classes: Classes) -> npt.NDArray[np.intp]:
    """Returns the positions of letters in front of a letter of another script. Latin next to CJK is normal."""
    before, after = classes[:-1], classes[1:]
    touching = (before != after) & (np.minimum(before, after) >= FIRST_SCRIPT) & (np.maximum(before, after) > CJK)
    return np.flatnonzero(touching)


def has_mojibake(text: str) -> bool:
    if any(is_misread(match[0]) for match in LONG_SEQUENCE.finditer(text)):
        return True
    return sum(is_misread(match[0]) for match in SHORT_SEQUENCE.finditer(text)) >= MIN_SHORT_SEQUENCES


def is_misread(text: str) -> bool:
    """Returns whether the bytes of this text are one character in UTF-8."""
    try:
        return len(b"".join(map(encode_western, text)).decode()) == 1
    except UnicodeError:
        return False


def encode_western(character: str) -> bytes:
    return character.encode("latin-1" if character <= "\xff" else "cp1252")


@cache
def get_classes() -> Classes:
    """Returns the class of each code point."""
    classes = np.zeros(0x110000, np.uint8)
    for point in range(0x20000):
        category = unicodedata.category(chr(point))
        if category in ("Co", "Cn") and point not in EMOJI_BLOCKS:
            classes[point] = UNKNOWN
        elif category == "Cc" and point not in PLAIN_CONTROLS:
            classes[point] = DAMAGED
    classes[0x32000:0xE0000] = classes[0xF0000:] = UNKNOWN
    classes[0xD800:0xE000] = classes[0xFDD0:0xFDF0] = classes[0xFFFD] = DAMAGED
    for plane in range(17):
        classes[plane << 16 | 0xFFFE : (plane + 1) << 16] = DAMAGED
    for script, ranges in SCRIPT_RANGES:
        for first, end in ranges:
            classes[first:end] = script
    classes[0xC2:0xF5] |= FIRST_BYTE
    classes[0x80:0xC0] |= FOLLOWING_BYTE
    classes[list(map(ord, FOLLOWING))] |= FOLLOWING_BYTE
    return classes
