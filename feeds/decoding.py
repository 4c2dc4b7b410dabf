"""Bytes as text, by the labels of the WHATWG Encoding Standard, and references in XML as browsers read them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from functools import partial
from html import entities

from common.xml import wide_encoding
from feeds.items import xml_text

_DECLARED = re.compile(rb"""\s*<\?xml\s[^>]*?encoding\s*=\s*["']([^"'>]*+)""")

_CODECS = (
    {f"iso8859-{number}" for number in (*range(2, 9), 10, 13, 14, 15, 16)}
    | {f"cp{number}" for number in (866, 874, 932, 949, *range(1250, 1259))}
    | {"utf-8", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "gb18030", "big5hkscs", "euc_jp", "iso2022_jp"}
)
"""Python's names of the encodings of the standard whose declaration can be read as ASCII."""

_AS_BROWSERS = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "shift_jis": "cp932", "euc_kr": "cp949", "gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs",
}  # fmt: skip
"""The encodings that the standard substitutes for other names."""

_LABELS = {
    "unicode-1-1-utf-8": "utf-8", "unicode11utf8": "utf-8", "unicode20utf8": "utf-8", "x-unicode20utf8": "utf-8",
    "sun_eu_greek": "iso8859-7", "visual": "iso8859-8", "logical": "iso8859-8", "csisolatin9": "iso8859-15",
    "koi": "koi8-r", "koi8": "koi8-r", "koi8-ru": "koi8-u", "dos-874": "cp874",
    "mac": "mac-roman", "csmacintosh": "mac-roman", "x-mac-roman": "mac-roman",
    "x-mac-cyrillic": "mac-cyrillic", "x-mac-ukrainian": "mac-cyrillic",
    "x-gbk": "gb18030", "gb_2312": "gb18030", "gb_2312-80": "gb18030", "csgb2312": "gb18030",
    "cn-big5": "big5hkscs", "x-x-big5": "big5hkscs", "x-sjis": "cp932", "windows-31j": "cp932",
    "x-euc-jp": "euc_jp", "cseucpkdfmtjapanese": "euc_jp", "windows-949": "cp949", "cseuckr": "cp949",
    "csksc56011987": "cp949", "iso-ir-149": "cp949", "ks_c_5601-1989": "cp949", "ksc_5601": "cp949",
}  # fmt: skip
"""Labels that Python does not know."""

_FAMILY = re.compile(r"(?:cs)?iso[-_]?8859[-_]?([0-9]{1,2})(?:[-_]?[ei])?|(?:x-cp|windows-)([0-9]{3,4})")


def codec_of(label: str) -> str | None:
    """Python's name of the encoding that a label of the standard stands for. None if the label is unknown or the
    encoding does not extend ASCII: then the label itself could not have been read.

    >>> codec_of(" ISO-8859-1 "), codec_of("Shift_JIS"), codec_of("utf-16")
    ('cp1252', 'cp932', None)
    """
    name = label.strip("\t\n\f\r ").lower()
    if (family := _FAMILY.fullmatch(name)) is not None:
        name = f"iso8859-{family[1]}" if family[1] else f"cp{family[2]}"
    if name not in _LABELS:
        try:
            name = codecs.lookup(name).name
        except (LookupError, ValueError):
            return None
    name = _LABELS.get(name, name)
    name = _AS_BROWSERS.get(name, name)
    return name if name in _CODECS else None


def decode_text(data: bytes, content_type: str = "") -> str:
    """The text of a feed or a list, by its byte order mark, its declaration, or its header Content-Type.

    The header is used last, and only if the bytes are not UTF-8, because servers add charsets that are not the feed's.
    Invalid bytes become U+FFFD. Text with more invalid than valid UTF-8 sequences is read as windows-1252, whatever it
    declares.

    >>> decode_text(b"<a>caf\\xe9</a>", "text/xml; charset=iso-8859-2"), decode_text(b"<a>\\xc3\\xa9 \\x92</a>")
    ('<a>café</a>', '<a>é \\ufffd</a>')
    """
    if (wide := wide_encoding(data)) is not None:
        return data.decode(wide, "replace").lstrip("\ufeff")
    data = data.removeprefix(codecs.BOM_UTF8)
    declared = _DECLARED.match(data)
    codec = codec_of(declared[1].decode("latin-1")) if declared is not None else None
    if codec is not None and codec != "utf-8":
        return _decoded(data, codec)
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    header = Message()
    header["Content-Type"] = content_type
    charset = codec_of(header.get_content_charset() or "") if codec is None else None
    if charset is not None and charset != "utf-8":
        return _decoded(data, charset)
    text = data.decode("utf-8", "replace")
    valid = data.decode("utf-8", "ignore")
    invalid = text.count("\ufffd") - valid.count("\ufffd")
    beyond_ascii = sum(map(len, re.findall(r"[^\x00-\x7f]+", valid)))
    return text if invalid <= beyond_ascii else data.decode("cp1252", "replace")


def decode_as(data: bytes, label: str) -> str:
    """Decodes with the encoding that the user has set, whatever the bytes declare; like `decode_text` if unknown."""
    codec = codec_of(label)
    if codec is None and label.lower().startswith("utf-16"):
        return data.decode(label, "replace").lstrip("\ufeff")
    return decode_text(data) if codec is None else _decoded(data.removeprefix(codecs.BOM_UTF8), codec)


def _decoded(data: bytes, codec: str) -> str:
    if codec != "euc_jp":
        return data.decode(codec, "replace")
    return data.decode(codec, _EUC_OF_WINDOWS).translate(_SIGNS_OF_WINDOWS)


def _from_windows(error: UnicodeError) -> tuple[str, int]:
    """Decodes a character that Windows added to EUC-JP (row 13, and IBM's), which Python's codec lacks."""
    assert isinstance(error, UnicodeDecodeError)
    row, cell = (*(byte - 0xA0 for byte in error.object[error.start : error.start + 2]), 0, 0)[:2]
    if 1 <= row <= 94 and 1 <= cell <= 94:  # the same character in Shift_JIS
        first = (row + 1) // 2 + (0x80 if row <= 62 else 0xC0)
        second = cell + (0x9E if row % 2 == 0 else 0x3F + (cell >= 64))
        with suppress(UnicodeDecodeError):
            return bytes((first, second)).decode("cp932"), error.start + 2
    return "\ufffd", error.end


_EUC_OF_WINDOWS = "mmqjp-euc-of-windows"
codecs.register_error(_EUC_OF_WINDOWS, _from_windows)
_SIGNS_OF_WINDOWS = str.maketrans("〜‖−¢£¬", "～∥－￠￡￢")  # signs of row 1 that Python's EUC-JP reads differently


_DECLARATION = re.compile(r"<\?xml\s[^>]*+>\s*+")


def without_declaration(text: str) -> str:
    """Drops the XML declaration, whose encoding no longer applies to decoded text."""
    return text[found.end() :] if (found := _DECLARATION.match(text)) is not None else text


_MARK = re.compile(
    r"""<!\[CDATA\[|<!--|<\?|<!DOCTYPE[^\[>]*+
    |(?P<tag><(?:[/A-Za-z_:]|[^\x00-\x7f])(?:[^"'<>]|"[^"<]*+"|'[^'<]*+')*>)
    |(?P<bare><)(?![/A-Za-z_:!?]|[^\x00-\x7f])
    |&""",
    re.VERBOSE,
)
_CLOSERS = {"<![CDATA[": "]]>", "<!--": "-->", "<?": "?>"}
_REFERENCE = re.compile(r"&(?:#(?:([0-9]++)|[xX]([0-9A-Fa-f]++));?|([A-Za-z][A-Za-z0-9]*+)(;?)|)")
_IN_SUBSET = re.compile(r"""\]|"[^"]*+"?|'[^']*+'?|<!--|<\?|<!ENTITY\s++([^\s%]\S*+)\s++(SYSTEM|PUBLIC|)""")
_OF_XML = dict.fromkeys(("amp", "lt", "gt", "quot", "apos"), "")
_LONGEST_LEGACY = max(len(name) for name in entities.html5 if not name.endswith(";"))
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def mend_references(text: str) -> str:
    """Makes references parsable: undeclared ones become the character that HTML gives them, those to external entities
    are dropped, and a stray ampersand or `<` is escaped. A pair of references to surrogates becomes their character, a
    lone one U+FFFD. Characters that XML forbids are dropped.

    >>> mend_references("<a b='?c=1&copy=2'>AT&T &eacute; 1 < 2 &#55357;&#56832;</a>")
    "<a b='?c=1&amp;copy=2'>AT&amp;T é 1 &lt; 2 😀</a>"
    """
    text = xml_text(text)
    pieces: list[str] = []
    declared = _OF_XML
    place = 0
    while (found := _MARK.search(text, place)) is not None:
        pieces.append(text[place : found.start()])
        opener = found[0]
        closer = ">" if opener.startswith("<!D") else _CLOSERS.get(opener, "")
        if closer:
            if closer == ">" and text.startswith("[", found.end()):
                end, declared = _internal_subset(text, found.end() + 1)
            else:
                end = text.find(closer, found.end()) + len(closer)
            if end < found.end():
                return _joined([*pieces, text[found.start() :]])
            pieces.append(text[found.start() : end])
        elif opener == "&":
            reference = _REFERENCE.match(text, found.start())
            assert reference is not None, "it matches an ampersand"
            end = reference.end()
            pieces.append(_mended(declared, False, reference))
        else:
            end = found.end()
            pieces.append("&lt;" if found["bare"] else _REFERENCE.sub(partial(_mended, declared, True), opener))
        place = end
    return _joined([*pieces, text[place:]])


def _internal_subset(text: str, start: int) -> tuple[int, dict[str, str]]:
    """The end of a DOCTYPE's internal subset, -1 if there is none, and SYSTEM or PUBLIC by external entity."""
    declared = dict(_OF_XML)
    while (found := _IN_SUBSET.search(text, start)) is not None:
        start = found.end()
        if found[0] == "]":
            return start, declared
        if (closer := _CLOSERS.get(found[0])) is not None:
            start = text.find(closer, start) + len(closer)
            if start < found.end():
                break
        elif found[1]:
            declared[found[1]] = found[2]
    return -1, declared


def _joined(pieces: list[str]) -> str:
    return "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _mended(declared: Mapping[str, str], in_tag: bool, found: re.Match[str]) -> str:
    decimal, hexadecimal, name, semicolon = found.groups()
    if decimal or hexadecimal:
        digits = (decimal or hexadecimal).lstrip("0")[:8] or "0"
        code = int(digits, 10 if decimal else 16)
        is_surrogate = 0xD800 <= code < 0xE000
        char = chr(code) if code < 0x110000 else "\ufffd"
        return char if is_surrogate else (xml_text(char) or "\ufffd").translate(_ESCAPES)
    if not name:
        return "&amp;"
    if semicolon and name in declared:
        return "" if declared[name] else found[0]
    if semicolon and (known := entities.html5.get(f"{name};")) is not None:
        return known.translate(_ESCAPES)
    following = found.string[found.end() : found.end() + 1]
    for length in range(min(len(name), _LONGEST_LEGACY), 1, -1):
        if (known := entities.html5.get(name[:length])) is None:
            continue
        # As in addresses: `&copy=1` is a parameter, and in a tag `&copyright` is not a sign.
        if (following == "=" and not semicolon) or (in_tag and length < len(name)):
            break
        return known.translate(_ESCAPES) + name[length:] + semicolon
    return f"&amp;{found[0][1:]}"


_OF_WINDOWS = re.compile(r"&#(?:(1[2-5][0-9])|[xX]([89][0-9A-Fa-f]));")


def windows_references(text: str) -> str:
    """Replaces references to the control characters 128 to 159 by the characters of windows-1252, as HTML does.

    >>> windows_references("&#151;&#x92;&#160;")
    '—’&#160;'
    """

    def meant(found: re.Match[str]) -> str:
        code = int(found[1] or found[2], 10 if found[1] else 16)
        return bytes([code]).decode("cp1252", "ignore") or found[0] if code >= 128 else found[0]

    return _OF_WINDOWS.sub(meant, text) if "&#" in text else text


_USED = re.compile(r"</?([A-Za-z_][\w.-]*+):|\s([A-Za-z_][\w.-]*+):[\w.-]++\s*+=")
_BOUND = re.compile(r"\sxmlns:([A-Za-z_][\w.-]*+)\s*+=")
_ROOT = re.compile(r"<[A-Za-z_][\w.:-]*+")


def declare_prefixes(text: str, usual: Mapping[str, str]) -> str:
    """Declares undeclared prefixes at the root, with their usual namespaces."""
    root = _ROOT.search(text)
    if root is None:
        return text
    used = {one or other for one, other in _USED.findall(text, root.start())}
    missing = sorted(used.difference(_BOUND.findall(text), ("xml", "xmlns")))
    declared = "".join(f' xmlns:{prefix}="{usual.get(prefix, f"urn:prefix:{prefix}")}"' for prefix in missing)
    return text[: root.end()] + declared + text[root.end() :]
