#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/text/vader/tables.inc and named_words.inc from the two lexicons in that folder.

    tools/make_vader_tables.py                     from the lexicons in the tree
    tools/make_vader_tables.py --take PACKAGE_DIR  first trims the lexicons of an installed vaderSentiment
    tools/make_vader_tables.py --check             exits 1 if the written files are out of date

The words of the lexicon and of the rules share one perfect-hash table, so that a token costs one lookup. Case classes and
white space are those of the running Python, like str.isupper() and str.split() in the reference: use the Python version of
the comparisons (3.11, Unicode 14).
"""
import argparse
import pathlib
import sys
import unicodedata

HERE = pathlib.Path(__file__).resolve().parent.parent / "src" / "text" / "vader"
MASK = (1 << 64) - 1
SLOT_BITS = 13
BUCKET_BITS = 13
MULTIPLIER = 0x9E3779B97F4A7C15  # also in vader_tokens.cc

NEGATIONS = """aint arent cannot cant couldnt darent didnt doesnt ain't aren't can't couldn't daren't didn't doesn't
dont hadnt hasnt havent isnt mightnt mustnt neither don't hadn't hasn't haven't isn't mightn't mustn't neednt needn't
never none nope nor not nothing nowhere oughtnt shant shouldnt uhuh wasnt werent oughtn't shan't shouldn't uh-uh wasn't
weren't without wont wouldnt won't wouldn't rarely seldom despite""".split()

BOOSTERS = """absolutely amazingly awfully completely considerable considerably decidedly deeply effing enormous
enormously entirely especially exceptional exceptionally extreme extremely fabulously flipping flippin frackin fracking
fricking frickin frigging friggin fully fuckin fucking fuggin fugging greatly hella highly hugely incredible incredibly
intensely major majorly more most particularly purely quite really remarkably so substantially thoroughly total totally
tremendous tremendously uber unbelievably unusually utter utterly very""".split()

DAMPENERS = """almost barely hardly kinda kindof kind-of less little marginal marginally occasional occasionally partly
scarce scarcely slight slightly somewhat sorta sortof sort-of""".split()

# Words used individually by a rule; each gets a constant kWord… in named_words.inc.
NAMED = """no or nor least at very never so this without doubt kind of the shit bomb bad ass bus stop yeah right
kiss death to die for beating heart just enough sort""".split()
# The rarest word of each idiom and two-word dampener; a lexicon word without one of these nearby skips the idiom check.
IDIOM_KEYS = "shit bomb ass bus yeah kiss die beating enough kind sort".split()

LEXICON, BOOSTER, DAMPENER, NEGATION, IDIOM_KEY, BUT = 1, 2, 4, 8, 16, 32  # also in vader_tokens.h


def read_lexicon(path):
    words = {}
    for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        if line:
            word, mean = line.strip().split("\t")[:2]
            words[word] = mean  # the last line of a word wins, as in the reference
    return words


def take(package):
    lexicon = read_lexicon(package / "vader_lexicon.txt")
    (HERE / "vader_lexicon.txt").write_text("".join(f"{w}\t{m}\n" for w, m in lexicon.items()), encoding="utf-8")
    emoji = read_lexicon(package / "emoji_utf8_lexicon.txt")
    lines = [f"{e}\t{d}\n" for e, d in emoji.items() if len(e) == 1]  # the reference looks up single characters only
    (HERE / "emoji_utf8_lexicon.txt").write_text("".join(lines), encoding="utf-8")


def word_key(word):
    data = word.encode()
    return [int.from_bytes(part, "little") for part in (data[:8], data[8:16], data[16:])]


def word_hash(word, seed):
    head, rest, _ = word_key(word)  # the length distinguishes the few words that differ later
    h = ((head + seed) * MULTIPLIER) & MASK
    return ((h ^ (h >> 29) ^ (rest + len(word) & MASK)) * MULTIPLIER) & MASK


def assign_slots(words, seed):
    """Perfect hash: the top bits select a bucket, the next bits XOR the bucket's displacement select the slot."""
    buckets = [[] for _ in range(1 << BUCKET_BITS)]
    for word in words:
        h = word_hash(word, seed)
        slot = h >> (64 - BUCKET_BITS - SLOT_BITS) & ((1 << SLOT_BITS) - 1)
        buckets[h >> (64 - BUCKET_BITS)].append((slot, word))
    slots, displace = [None] * (1 << SLOT_BITS), [0] * len(buckets)
    for b in sorted(range(len(buckets)), key=lambda b: -len(buckets[b])):
        wanted = [slot for slot, _ in buckets[b]]
        if len(set(wanted)) < len(wanted):
            return None
        for d in range(len(slots)):
            if all(slots[slot ^ d] is None for slot in wanted):
                break
        else:
            return None
        displace[b] = d
        for slot, word in buckets[b]:
            slots[slot ^ d] = word
    return slots, displace


def rows(numbers, per_line=20):
    lines = [",".join(map(str, numbers[i:i + per_line])) for i in range(0, len(numbers), per_line)]
    return "".join(f"    {line},\n" for line in lines)


def literal(data):
    out, line = [], ""
    for byte in data:
        piece = chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        if len(line) + len(piece) > 110:
            out.append(f'    "{line}"\n')
            line = ""
        line += piece
    return "".join(out) + f'    "{line}"'  # '?' is escaped too: no trigraphs


def word_tables():
    lexicon = read_lexicon(HERE / "vader_lexicon.txt")
    # Keys are looked up in lower case and without white space, and only the Kelvin sign lower-cases to ASCII from outside,
    # so other keys can never match.
    flags = {}
    for word in lexicon:
        if word == word.lower() and word.isascii() and not any(c.isspace() for c in word):
            flags[word] = LEXICON
    for listed, flag in ((BOOSTERS, BOOSTER), (DAMPENERS, DAMPENER), (NEGATIONS, NEGATION), (IDIOM_KEYS, IDIOM_KEY),
                         (["but"], BUT)):
        for word in listed:
            flags[word] = flags.get(word, 0) | flag
    for word in NAMED:
        flags.setdefault(word, 0)
    words = sorted(flags)
    named = {word: i + 1 for i, word in enumerate(NAMED)}
    longest = max(len(word) for word in words)
    assert longest <= 19 and len({word_hash(word, 1) for word in words}) == len(words)
    seed, placed = 0, None
    while not placed:
        seed += 1
        placed = assign_slots(words, seed)
    slots, displace = placed

    entries = []
    for word in slots:
        if word is None:
            entries.append("{}")
            continue
        valence = round(float(lexicon[word]) * 10) if flags[word] & LEXICON else 0
        assert not flags[word] & LEXICON or valence / 10 == float(lexicon[word])
        head, rest, end = word_key(word)
        key = f"{head:#x},{rest:#x},{end << 8 | len(word):#x}"
        entries.append(f"{{{{{key}}},{{{flags[word]},{named.get(word, 0)},{valence}}}}}")
    out = [f"constexpr size_t kLongestWord = {longest};\nconstexpr uint64_t kHashSeed = {seed};\n"]
    out.append(f"constexpr int kBucketBits = {BUCKET_BITS};\nconstexpr int kSlotBits = {SLOT_BITS};\n")
    out.append(f"constexpr uint16_t kDisplace[{len(displace)}] = {{\n{rows(displace)}}};\n")
    out.append("// key (bytes 0 to 7, 8 to 15, 16 to 18 above the length), then flags, named word, valence in tenths\n")
    out.append(f"constexpr WordEntry kWords[{len(slots)}] = {{\n{rows(entries, 3)}}};\n")
    return "".join(out)


def two_level(values, name, bits, pack):
    """Builds pages of 64 code points (one UTF-8 trailing byte); equal pages are stored once."""
    pages, index = {}, []
    for start in range(0, 0x20000, 64):
        page = tuple(values.get(c, 0) for c in range(start, start + 64))
        index.append(pages.setdefault(page, len(pages)))
    assert len(pages) < 256 and max(values) < 0x20000
    body = [n for page in pages for n in pack(page)]
    return (f"constexpr uint8_t k{name}Page[{len(index)}] = {{\n{rows(index, 30)}}};\n"
            f"constexpr uint{bits}_t k{name}[{len(body)}] = {{\n{rows(body)}}};\n")


def emoji_tables():
    emoji = read_lexicon(HERE / "emoji_utf8_lexicon.txt")
    descriptions = [d for _, d in sorted(emoji.items())]
    where = {ord(e): i + 1 for i, e in enumerate(sorted(emoji))}
    pool, offsets = b"", []
    for d in descriptions:
        offsets.append(len(pool))
        pool += d.encode()
    offsets.append(len(pool))
    longest = max(len(d.encode()) for d in descriptions)
    leads = sorted({e.encode()[0] for e in emoji})
    assert min(where) >= 0x80 and len(pool) < 1 << 16
    return (f"// 1 + the emoji's index, or 0\n{two_level(where, 'Emoji', 16, list)}"
            f"constexpr uint8_t kEmojiLeads[{len(leads)}] = {{{', '.join(map(hex, leads))}}};\n"
            f"constexpr size_t kLongestEmojiText = {longest};\n"
            f"constexpr uint16_t kEmojiTextAt[{len(offsets)}] = {{\n{rows(offsets)}}};\n"
            "// Zero bytes at the end, so that the longest length may be copied from anywhere.\n"
            f"constexpr char kEmojiText[] =\n{literal(pool + bytes(longest))};\n")


def case_tables():
    def kind(ch):
        if ch.isspace():
            return 3
        if ch.isupper():
            return 1
        return 2 if ch.islower() or unicodedata.category(ch) == "Lt" else 0

    kinds = {c: kind(chr(c)) for c in range(0x110000) if not 0xD800 <= c < 0xE000}
    kinds = {c: k for c, k in kinds.items() if k}

    def pack(page):
        return [hex(sum(page[w * 32 + i] << (2 * i) for i in range(32))) for w in range(2)]

    return (f"// Two bits a code point, Unicode {unicodedata.unidata_version}: 1 upper case, 2 lower or title case, "
            f"3 white space\n{two_level(kinds, 'Case', 64, pack)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=pathlib.Path, metavar="PACKAGE_DIR")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.take:
        take(args.take)
    constants = "".join(f"  kWord{w.capitalize()},\n" for w in NAMED)
    lists = ("// SPDX-License-Identifier: Apache-2.0\n"
             "// Written by tools/make_vader_tables.py: the words that rules name.\n"
             "enum NamedWord : uint8_t {\n  kWordNone,\n" + constants + "};\n")
    tables = ("// SPDX-License-Identifier: MIT\n"
              "// Written by tools/make_vader_tables.py from vader_lexicon.txt and emoji_utf8_lexicon.txt\n"
              "// (C.J. Hutto, MIT, see LICENSE beside). Included by vader_tokens.cc alone.\n"
              "// clang-format off\n" + word_tables() + emoji_tables() + case_tables() + "// clang-format on\n")
    for name, text in (("named_words.inc", lists), ("tables.inc", tables)):
        target = HERE / name
        if not args.check:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            sys.exit(f"{target} is not current: run tools/make_vader_tables.py")


if __name__ == "__main__":
    main()
