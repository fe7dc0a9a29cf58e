#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/vader_golden.jsonl: texts with the scores of vaderSentiment 3.3.2 under Python 3.11.

    python tools/make_vader_golden.py                       rewrites the file
    python tools/make_vader_golden.py --compare BENCH -n N  compares vader_bench with the reference on N random texts
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from vaderSentiment import vaderSentiment
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

KEYS = ("neg", "neu", "pos", "compound")
TARGET = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "vader_golden.jsonl"

# At least one text for every rule and every quirk of the reference.
QUIRKS = [
    "", " ", "\t\n", ".", "a", "!", "??", "!!!", "0", "\x00", "\x7f", "good", "GOOD", "bad", "ok", "The book was good.",
    # capitals
    "GOOD news", "good NEWS", "ALL GOOD NEWS", "it is GOOD", "it is VERY good", "it is VERY GOOD", "NO good", "NO GOOD no",
    "IT IS BAD bad", "ΚΑΛΟ good", "καλο GOOD", "ǅ GOOD", "Ⅷ good", "ⓐ GOOD", "ß GOOD", "ﬁ GOOD", "Ω good", "123 GOOD",
    "𝐆 good", "𝐆𝐎 good", "中 GOOD", "İ good", "İ GOOD a", "ª GOOD",
    # boosters and dampeners
    "very good", "very bad", "VERY bad thing", "so very good", "a very very very very good", "kinda good", "kind of good",
    "it is kind of good", "just enough good", "it is just enough good", "that was sort of bad", "was sort of very bad",
    "sort-of good", "extremely kind people", "kind of", "kind", "Kind OF", "more or less good", "most amazing", "less good",
    "hardly ever so good", "slightly more good", "incredibly barely good", "a kind of a good thing", "one kind of good one",
    # negation
    "not good", "not very good", "not at all good", "isn't good", "ISN'T good", "isnt good", "no good", "no one good",
    "no good or bad", "no happy nor sad", "no", "no no", "no love no hate", "nothing good or bad", "never good",
    "never so good", "never this good", "it was never so bad", "never ever so good", "so good so good this good", "this good",
    "it is this good", "without doubt good", "without a doubt good", "without any good", "was without doubt the best",
    "can't stand", "can't good", "n't good", "xn'ty good", "ton't'x good", "uh-uh good", "despite good", "rarely good",
    "it don't seem good", "we wouldn’t good", "Ãn't good", "n'tÃ good", "'n't' good", "no nor good", "bad no or good",
    # least
    "least good", "at least good", "very least good", "the least good", "least", "the very least good", "LEAST good",
    # idioms
    "the shit", "it is the shit", "this is the shit man", "he is the bomb now", "what a bad ass thing", "a badass thing",
    "we waited at the bus stop", "at that bus stop now", "oh well yeah right", "yeah right good", "that yeah right good",
    "it was the kiss of death", "it was a kiss of death ok", "a cake that is to die for", "cake to die for good",
    "my beating heart is good", "with a beating heart", "he had a beating heart good", "the shit good", "x the shit good",
    "x y the shit good", "a b c die for", "a b to die for", "a b bad ass", "kiss of death good", "the the shit bomb good",
    "die to die for die", "x kind of the shit", "a sort of the bomb", "it was just enough the shit",
    # but
    "good but bad", "good BUT bad", "but good", "good but", "good good but good good", "good bad but bad good",
    "great great good but great good good", "good but good but good", "happy sad but happy sad but happy sad",
    "bad bad bad bad but bad bad bad bad", "good but, bad", "good 'but' bad", "butt good", "good great but good great love",
    " ".join(["good"] * 60 + ["but"] + ["good"] * 60), " ".join(["good", "great", "bad"] * 40 + ["but"] + ["bad"] * 50),
    " ".join(["good", "VERY", "good", "not", "bad"] * 30 + ["but"] + ["good", "very", "great"] * 30),
    # punctuation
    "good!", "good!!", "good!!!", "good!!!!", "good!!!!!", "good?", "good??", "good???", "good????", "good?????", "bad!", "bad??",
    "bad?!?!", "!good!", "\"good\"", "(good)", "good,bad", "good-", "--good--", "..ok..", ".ok", "ok.", "'no'", "no.", "(no)",
    "a.b", "#good", "@good", "good's", "good...bad", "$good$", "`good`", "~good~", "[good]", "{good}", "|good|", "good\x7f",
    "\x7fgood", "don't!", "good!?bad", "¡good!", "good…", "“good”", "good\u200b", "!!", "so!", "it's", "...", ".......... good",
    # emoticons
    ":)", ":-)", ":(", ":D", ":d", ":P", "XD", "xd", "<3", "</3", ";)", ":')", ":-Þ", ":Þ", "O.o", "o.O", "o_O", "^_^", "8)",
    "=D", "(:", "):", "( '}{' )", "}:)", ":):", ":-D!", "d:", "D:", "<3good", "<3 <3 <3", "\\o/", "\\m/", "%)", "'')", ":))))",
    # white space
    "good\u00a0bad", "good\u3000bad", "good\u2028bad", "good\x85bad", "good\x1cbad", "good\x1fbad", "good\x0bbad", "good\x0cbad",
    "good\tbad", "good\nbad", "good\r\nbad", "good\u200bbad", "good\ufeffbad", "good\u180ebad", "good\u205fbad", "good\u1680bad",
    "\u00a0good\u00a0", "good  bad", "good\x00bad", "good\x01bad", "\x02good bad", "good\u2003", "\u2003",
    # non-ASCII letters; only the Kelvin sign lower-cases to ASCII
    "ta\u212Aen", "li\u212Ae it", "LI\u212AE it", "\u212Aind", "\u212Aind of good", "\u212Aill", "\u212Aİnd", "lİke", "naïve", "café",
    "\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A\u212A",
    # emoji
    "😀", "😀😀", "good😀", "😀good", "😀 good", "good 😀 bad", "\n😀", "good\t😀bad", "❤", "❤️", "I ❤️ it", "👍🏽", "👨‍👩‍👧", "🇺🇸", "💔",
    "😡!", "!😡", "💀💀💀 dead", "🔛", "🆙", "🆗 button", "🙅", "©", "®", "™ good", "😀\u00a0😀", "GOOD 😀", "😀 GOOD", "🆘", "☺️", "☹️ sad",
    "not 😀", "very 😍", "but 😀 but", "😀 but 😭", "no 😀", "no😀", "kind 😀 of", "💋" * 40, "😭" * 30 + " but " + "😀" * 30, "a" + "😀" * 3 + "b",
    # lengths around the vector size of sixteen bytes
    *("x" * n + " good" for n in (13, 14, 15, 16, 17, 31, 32, 33)), *("good" + "!" * n for n in (10, 11, 12, 13, 28)),
    *("." * n + "good" for n in (11, 12, 13, 15, 16, 17)), "attractivenesses", "confrontationists", "sentimentalizations",
    "SENTIMENTALIZATIONS now", "intellectualization", "intellectualizatioN", "intellectualizations", "(enthusiastically)",
    "once-in-a-lifetime", "tenderheartednesses!", "xtenderheartednesses", "oversimplificatio", "disadvantageousness,",
]

ODD = list("\u00a0\u3000\u2028\x85\x1c\x1f\x0b\t\n\r\x00\x01\x7f\u200b\ufeff\u0301\ufe0f\u200d\ufffd") + [
    "\u212A", "İ", "ß", "ǅ", "Ⅷ", "ª", "Δ", "δ", "Я", "я", "中文", "𝐆", "𐐀", "é", "É", "ﬁ", "\U000e0067", "\U0010ffff", "…", "’", "«"]
PUNCTUATION = list("!!!???.,;:'\"()-#@*/\\&%$^_~`|<>[]{}=+")
RULE_WORDS = ("no or nor least at very never so this without doubt but kind of the shit bomb bad ass badass bus stop yeah "
              "right kiss death to die for beating heart just enough sort a i it is was and").split()
IDIOMS = ["the shit", "the bomb", "bad ass", "bus stop", "yeah right", "kiss of death", "to die for", "beating heart",
          "kind of", "sort of", "just enough", "never so", "never this", "without doubt", "at least", "very least"]


class Mixer:
    def __init__(self, analyzer, seed):
        self.rng = random.Random(seed)
        self.lexicon = list(analyzer.lexicon)
        self.modifiers = list(vaderSentiment.BOOSTER_DICT) + vaderSentiment.NEGATE
        self.emoji = list(analyzer.emojis)
        self.liked = self.rng.sample(self.lexicon, 40)  # repeated, so that texts contain equal valences

    def word(self):
        r = self.rng
        kind = r.random()
        if kind < 0.28:
            word = r.choice(self.lexicon)
        elif kind < 0.40:
            word = r.choice(self.liked)
        elif kind < 0.54:
            word = r.choice(self.modifiers)
        elif kind < 0.72:
            word = r.choice(RULE_WORDS)
        elif kind < 0.80:
            word = r.choice(IDIOMS)
        elif kind < 0.88:
            word = r.choice(self.emoji) * r.choice((1, 1, 1, 2, 3))
        elif kind < 0.92:
            word = "".join(r.choice(PUNCTUATION) for _ in range(r.randint(1, 5)))
        elif kind < 0.96:
            word = "".join(chr(r.randint(97, 122)) for _ in range(r.choice((1, 2, 3, 7, 8, 9, 15, 16, 17, 20, 40))))
        else:
            word = r.choice(ODD) * r.randint(1, 2)
        shape = r.random()
        if shape < 0.15:
            word = word.upper()
        elif shape < 0.25:
            word = word.title()
        elif shape < 0.28:
            word = "".join(c.upper() if r.random() < 0.5 else c for c in word)
        if r.random() < 0.03:
            word = word.replace("k", "\u212A").replace("K", "\u212A")
        if r.random() < 0.15:
            word += "".join(r.choice(PUNCTUATION) for _ in range(r.choice((1, 1, 1, 2, 3, 12))))
        if r.random() < 0.08:
            word = r.choice(PUNCTUATION) * r.choice((1, 1, 2)) + word
        if r.random() < 0.03:
            at = r.randint(0, len(word))
            word = word[:at] + r.choice(ODD) + word[at:]
        return word

    def text(self):
        r = self.rng
        glue = " " if r.random() < 0.8 else ""
        out = []
        for _ in range(r.choice((1, 2, 3, 4, 5, 6, 8, 10, 15, 25, 40, 90))):
            out.append(self.word())
            out.append(glue or r.choice([" ", " ", " ", "", "  ", "\t", "\n", r.choice(ODD)]))
        if r.random() < 0.7 and out[-1] == " ":
            out.pop()
        return "".join(out)


def reference(analyzer, text):
    scores = analyzer.polarity_scores(text)
    return [scores[k] for k in KEYS]


def compare(bench, analyzer, count, seed):
    mixer = Mixer(analyzer, seed)
    texts = [mixer.text() for _ in range(count)]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.writelines(json.dumps(t) + "\n" for t in texts)
        f.flush()
        lines = subprocess.check_output([bench, f.name, "--scores"], text=True).splitlines()
    assert len(lines) == len(texts)
    differing = 0
    for text, line in zip(texts, lines):
        want = reference(analyzer, text)
        if json.loads(line) != want:
            differing += 1
            if differing <= 10:
                print(json.dumps(text), "reference", want, "brim", line)
    print(f"{count} random texts, {differing} differ")
    return differing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", metavar="BENCH", help="the built vader_bench")
    parser.add_argument("-n", type=int, default=50000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    analyzer = SentimentIntensityAnalyzer()
    if args.compare:
        sys.exit(1 if compare(args.compare, analyzer, args.n, args.seed) else 0)
    mixer = Mixer(analyzer, 7)
    texts = QUIRKS + [mixer.text() for _ in range(60)]
    with open(TARGET, "w", encoding="utf-8") as f:
        for text in texts:
            row = {"text": text} | dict(zip(KEYS, reference(analyzer, text)))
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{TARGET}: {len(texts)} rows")


if __name__ == "__main__":
    main()
