#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/text/unicode/unicode_tables.inc from Debian's unicode-data package (15.0).

Hugging Face's tokenizers uses several Unicode versions: 9 in its normalizer, 8 for punctuation and accents, 16 in regular
expressions, 17 for lower-casing. tools/unicode_overrides.json contains the differences from unicode-data and takes
precedence. Running this script with --probe (requires the `tokenizers` module) records that file; without --probe the script
reads only unicode-data and that file.
"""
import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
OVERRIDES = ROOT / "tools/unicode_overrides.json"
OUTPUT = ROOT / "src/text/unicode/unicode_tables.inc"
LAST = 0x110000
SURROGATES = range(0xD800, 0xE000)
CODE_POINTS = [c for c in range(LAST) if c not in SURROGATES]

CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cs").split()
# Bits above the five of the category; each is a property used by some part of the tokenizer.
FLAGS = ["white_space", "numeric", "punctuation", "control", "nonspacing", "combining", "word_onig", "word_regex"]
ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


class Ucd:
    """Properties from unicode-data."""

    def __init__(self, folder):
        self.category = ["Cn"] * LAST
        self.lower, self.ccc, self.canonical, self.compatible = {}, {}, {}, {}
        first = None
        for line in open(folder / "UnicodeData.txt", encoding="utf-8"):
            field = line.rstrip("\n").split(";")
            code = int(field[0], 16)
            if field[1].endswith("First>"):
                first = code
                continue
            for c in range(first if field[1].endswith("Last>") else code, code + 1):
                self.category[c] = field[2]
            if field[3] != "0":
                self.ccc[code] = int(field[3])
            if field[5]:
                parts = field[5].split()
                table = self.compatible if parts[0].startswith("<") else self.canonical
                table[code] = [int(p, 16) for p in parts if not p.startswith("<")]
            if field[13]:
                self.lower[code] = [int(field[13], 16)]
        self.lower[0x130] = [0x69, 0x307]  # SpecialCasing.txt: the only unconditional lower-casing to two
        self.white_space = self.property(folder / "PropList.txt", "White_Space")
        self.alphabetic = self.property(folder / "DerivedCoreProperties.txt", "Alphabetic")
        self.join_control = self.property(folder / "PropList.txt", "Join_Control")
        excluded = self.property(folder / "DerivedNormalizationProps.txt", "Full_Composition_Exclusion")
        self.pairs = {tuple(d): c for c, d in self.canonical.items() if len(d) == 2 and c not in excluded}

    @staticmethod
    def property(path, name):
        found = set()
        for line in open(path, encoding="utf-8"):
            field = [f.strip() for f in line.split("#")[0].split(";")]
            if len(field) >= 2 and field[1] == name:
                ends = [int(x, 16) for x in field[0].split("..")]
                found.update(range(ends[0], ends[-1] + 1))
        return found

    def flags(self, c):
        category = self.category[c]
        word = c in self.alphabetic or category[0] == "M" or category in ("Nd", "Pc")
        return {
            "white_space": c in self.white_space,
            "numeric": category[0] == "N",
            "punctuation": category[0] == "P" or (c < 128 and chr(c) in ASCII_PUNCTUATION),
            "control": c == 0xFFFD or (category in ("Cc", "Cf", "Co") and c not in (9, 10, 13)),
            "nonspacing": category == "Mn",
            "combining": category[0] == "M",
            "word_onig": word,
            "word_regex": word or c in self.join_control,
        }


def ranges(codes):
    out = []
    for c in sorted(codes):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def probe(ucd):
    """Determines the library's properties of every code point; returns the differences from unicode-data."""
    from tokenizers import Regex, normalizers as norm, pre_tokenizers as pre

    def splits(part):
        return {c for c in CODE_POINTS if len(part.pre_tokenize_str("a" + chr(c) + "a")) > 1}

    def removes(part):
        return {c for c in CODE_POINTS if part.normalize_str("a" + chr(c) + "b") == "ab"}

    def matches(pattern):
        part = pre.Split(Regex(pattern), "removed")
        return {c for c in CODE_POINTS if not part.pre_tokenize_str(chr(c))}

    def bert(**on):
        default = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
        return norm.BertNormalizer(**{**default, **on})

    whitespace = pre.Whitespace()

    def is_word(c):
        found = whitespace.pre_tokenize_str("a" + chr(c))
        return len(found) == 1 and len(found[0][0]) == 2

    library = {
        "white_space": splits(pre.WhitespaceSplit()),
        "numeric": splits(pre.Digits()),
        "punctuation": splits(pre.Punctuation()),
        "control": removes(bert(clean_text=True)),
        "nonspacing": removes(bert(strip_accents=True)),
        "combining": removes(norm.StripAccents()),
        "word_onig": matches(r"\w"),
        "word_regex": {c for c in CODE_POINTS if is_word(c)},
    }
    out = {"flags": {}, "category": {}, "lower": {}, "ccc": {}, "canonical": {}, "compatible": {}, "pairs": {}}
    own = {name: set() for name in FLAGS}
    for c in CODE_POINTS:
        for name, value in ucd.flags(c).items():
            if value:
                own[name].add(c)
    for name in FLAGS:
        out["flags"][name] = {"on": ranges(library[name] - own[name]), "off": ranges(own[name] - library[name])}
    for name in CATEGORIES:
        if name not in ("Cs",):
            changed = {c for c in matches(r"\p{%s}" % name) if ucd.category[c] != name}
            if changed:
                out["category"][name] = ranges(changed)
    part = norm.Lowercase()
    for c in CODE_POINTS:
        lower = [ord(x) for x in part.normalize_str(chr(c))]
        if lower != ucd.lower.get(c, [c]):
            out["lower"][str(c)] = lower

    nfd, nfkd, nfc = norm.NFD(), norm.NFKD(), norm.NFC()
    # The combining class of c, from its position after sorting among marks of every known class.
    marks = {}
    for c, k in sorted(ucd.ccc.items(), key=lambda item: item[0]):
        known = k == 1 or nfd.normalize_str("a" + chr(c) + "\u0334") == "a\u0334" + chr(c)
        if known and len(nfd.normalize_str(chr(c))) == 1:
            marks.setdefault(k, chr(c))
    classes = sorted(marks)

    def library_ccc(c):
        ch = chr(c)
        below = [k for k in classes if nfd.normalize_str("a" + ch + marks[k]) == "a" + marks[k] + ch]
        above = [k for k in classes if nfd.normalize_str("a" + marks[k] + ch) == "a" + ch + marks[k]]
        if not below and not above:
            return 0
        same = [k for k in classes if (k in below) == (k in above)]  # in both: c is that mark itself
        assert len(same) == 1, (hex(c), below, above, same)
        return same[0]

    for c in sorted(set(ucd.ccc) | library["combining"]):
        if nfd.normalize_str(chr(c)) == chr(c) and library_ccc(c) != ucd.ccc.get(c, 0):
            out["ccc"][str(c)] = library_ccc(c)
    for c in CODE_POINTS:
        if 0xAC00 <= c < 0xD7A4:
            continue
        for name, part in (("canonical", nfd), ("compatible", nfkd)):
            found = [ord(x) for x in part.normalize_str(chr(c))]
            if found != full_decomposition(ucd, c, name == "compatible"):
                out[name][str(c)] = found
    for pair, composed in ucd.pairs.items():
        if nfc.normalize_str("".join(map(chr, pair))) != chr(composed):
            out["pairs"][str(composed)] = None
    return out


def full_decomposition(ucd, c, compatible):
    parts = ucd.canonical.get(c) or (ucd.compatible.get(c) if compatible else None)
    if parts is None:
        return [c]
    return [x for p in parts for x in full_decomposition(ucd, p, compatible)]


def two_stage(values, block=256):
    """Stores repeated blocks once: the value of c is stage2[stage1[c / block] * block + c % block]."""
    seen, stage1, stage2 = {}, [], []
    for start in range(0, LAST, block):
        piece = tuple(values[start : start + block])
        if piece not in seen:
            seen[piece] = len(seen)
            stage2.extend(piece)
        stage1.append(seen[piece])
    return stage1, stage2


def c_array(kind, name, values):
    lines, line = [], ""
    for v in values:
        text = str(v) + ","
        if len(line) + len(text) > 118:
            lines.append(line)
            line = ""
        line += text
    lines.append(line)
    return f"constexpr {kind} {name}[{len(values)}] = {{\n" + "\n".join(lines) + "\n};\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ucd", type=pathlib.Path, default=pathlib.Path("/usr/share/unicode"))
    parser.add_argument("--probe", action="store_true", help="derive the overrides from the tokenizers module and rewrite them")
    args = parser.parse_args()
    ucd = Ucd(args.ucd)
    if args.probe:
        found = probe(ucd)
        rows = ",\n".join(f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in found.items())
        OVERRIDES.write_text("{\n" + rows + "\n}\n")
    over = json.loads(OVERRIDES.read_text())

    flags = [ucd.flags(c) for c in range(LAST)]
    for name, change in over["flags"].items():
        for key, value in (("on", True), ("off", False)):
            for first, last in change[key]:
                for c in range(first, last + 1):
                    flags[c][name] = value
    category = list(ucd.category)
    for name, spans in over["category"].items():
        for first, last in spans:
            category[first : last + 1] = [name] * (last + 1 - first)
    properties = [
        CATEGORIES.index(category[c]) | sum(flags[c][name] << (5 + i) for i, name in enumerate(FLAGS))
        for c in range(LAST)
    ]

    lower = dict(ucd.lower)
    lower.update({int(c): v for c, v in over["lower"].items()})
    deltas = [0] + sorted({v[0] - c for c, v in lower.items() if len(v) == 1 and v != [c]})
    assert [c for c, v in lower.items() if len(v) != 1] == [0x130], "only U+0130 is lower-cased to two"
    lower_index = [0] * LAST
    for c, v in lower.items():
        if len(v) == 1:
            lower_index[c] = deltas.index(v[0] - c)

    ccc = [0] * LAST
    for c, v in list(ucd.ccc.items()) + [(int(c), v) for c, v in over["ccc"].items()]:
        ccc[c] = v

    pool, records, record_index, at = [], [(0, 0, 0, 0)], [0] * LAST, {}

    def stored(parts):
        key = tuple(parts)
        if key not in at:
            at[key] = len(pool)
            pool.extend(parts)
        return at[key], len(parts)

    for c in CODE_POINTS:
        canonical = over["canonical"].get(str(c)) or full_decomposition(ucd, c, False)
        compatible = over["compatible"].get(str(c)) or full_decomposition(ucd, c, True)
        canonical = [] if canonical == [c] else canonical
        compatible = [] if compatible == [c] else compatible
        if canonical or compatible:
            record_index[c] = len(records)
            records.append((*(stored(canonical) if canonical else (0, 0)), *(stored(compatible) if compatible else (0, 0))))

    gone = {int(c) for c in over["pairs"]}
    pairs = sorted((a, b, c) for (a, b), c in ucd.pairs.items() if c not in gone)

    text = "// SPDX-License-Identifier: Apache-2.0\n"
    text += "// Written by tools/make_unicode_tables.py; do not edit. Data: Unicode Character Database 15.0 and the recorded\n"
    text += "// differences of tools/unicode_overrides.json. clang-format off\n"
    text += "constexpr int kBlock = 256;\n"
    for kind, name, values in (
        ("uint16_t", "Properties", properties),
        ("uint8_t", "Lower", lower_index),
        ("uint8_t", "Ccc", ccc),
        ("uint16_t", "Decomposition", record_index),
    ):
        stage1, stage2 = two_stage(values)
        text += c_array("uint8_t" if max(stage1) < 256 else "uint16_t", f"k{name}Stage1", stage1)
        text += c_array(kind, f"k{name}Stage2", stage2)
    text += c_array("int32_t", "kLowerDeltas", deltas)
    text += c_array("char32_t", "kDecompositionPool", pool)
    text += c_array("uint16_t", "kDecompositionRecords", [x for r in records for x in r])
    text += c_array("char32_t", "kCompositionPairs", [x for p in pairs for x in p])
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
