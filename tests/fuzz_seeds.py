# SPDX-License-Identifier: Apache-2.0
"""Seeds and input limits of the fuzz targets, for tests/fuzz. Files are from tests/data; formats without files there
(requests, pickles, zone files) are defined here. The first byte of some targets selects a mode."""
import base64
import gzip
import json
import pathlib
import re
import struct
import zipfile
import zlib

root = pathlib.Path(__file__).resolve().parent.parent
data = root / "tests" / "data"

# Largest input in bytes (-max_len), at least twice the largest seed except for regex, which ignores longer ones.
MAX_LEN = {
    "adapter": 4 << 10, "charsmap": 8 << 10, "compress": 4 << 10, "conll": 8 << 10, "framing": 4 << 10,
    "gliner_config": 8 << 10, "hf_config": 8 << 10, "jsonl": 4 << 10, "pickle": 8 << 10, "proxies": 2 << 10,
    "queue": 4 << 10, "regex": 200, "routes": 4 << 10, "safetensors": 8 << 10, "serve_config": 4 << 10,
    "shape": 8 << 10, "time_zone": 8 << 10, "timestamps": 256, "tokenizer_encode": 4 << 10,
    "tokenizer_json": 32 << 10,
}
DEFAULT_MAX_LEN = 16 << 10

# Minutes of CPU time of `tests/fuzz --full`. Parsers of files that users download get more.
LONG = {"conll", "safetensors", "spm_model", "tokenizer_json", "torch_bin"}


def max_len(target):
    return MAX_LEN.get(target, DEFAULT_MAX_LEN)


def minutes(target):
    return 30 if target in LONG else 10


def files(*patterns):
    return [path.read_bytes() for pattern in patterns for path in sorted(data.glob(pattern))]


def small(contents, target):
    """Omits seeds longer than max_len, which would be truncated."""
    return [content for content in contents if len(content) <= max_len(target)]


def first_byte(modes, contents):
    return [mode + content for mode in modes for content in contents]


def post(fields, body):
    return b"\3POST /predict HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n" + body


def framing():
    return [
        b"\3GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        post(b"Content-Length: 5\r\n", b"helloPOST / HTTP/1.0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n"),
        post(b"Transfer-Encoding: chunked\r\n", b"a\r\n0123456789\r\n1F\r\n" + b"x" * 31 + b"\r\n0\r\n\r\n"),
        post(b"Transfer-Encoding: gzip\r\nContent-Length: 3\r\n", b"abc"),
        post(b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", b"1;a=b\r\nx\r\n0\r\nT: v\r\n\r\n"),
        post(b"Content-Length: 3\r\nContent-Length: 3\r\n", b"abc"),
        post(b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n", b"{}"),
        b"\3GET / HTTP/1.1\nHost: a\n\n",
    ]


def routes():
    bodies = [
        {"inputs": "w6", "model": "cls", "truncate": False, "raw_scores": True},
        {"inputs": [["w6", "w7"], ["w8"]], "top_k": 1, "on_error": "null"},
        {"inputs": [[2, 6, 3], "w7"], "model": "emb", "normalize": True, "dimensions": 3},
        {"input": [2, 6, 3], "model": "emb", "encoding_format": "base64"},
        {"query": "w6", "texts": ["w7"], "return_text": True},
        {"inputs": {"source_sentence": "w6", "sentences": ["w7"]}, "parameters": {"truncate": True}},
        {"ids": [[2, 6], [3]], "skip_special_tokens": False},
        {"inputs": "w6 w7", "parameters": {"aggregation_strategy": "max", "stride": 2, "ignore_labels": ["O"]}},
        {"items": [{"text": "good", "item": {"id": 1}}], "source": "a"},
        {"input": "w6", "priority": "bulk", "timeout_ms": 9, "long_text": "window-max"},
    ]
    labels = [
        {"inputs": "w6 w7", "parameters": {"candidate_labels": ["w7", "w8"], "multi_label": True}},
        {"inputs": ["w6", "w9"], "candidate_labels": "w7, w8", "hypothesis_template": "w9 {}."},
        {"input": "Ada works with a bank", "model": "gliner", "labels": ["a", "bank"], "threshold": 0, "nested": True},
        {"input": ["Ada"], "model": "gliner", "labels": "a,bank", "threshold": 0.25, "long_text": "window-max"},
    ]
    rows = [
        b"format=csv&text_column=t&model=vader\nid,t\n1,I love it\n2,\"I hate it\n",
        b"model=cls&all_scores=true&output_format=tsv\n{\"text\":\"w6\"}\nno json\n",
        b"format=txt&pair_column=b\nso good\n",
        b"format=csv&text_column=t\n" + gzip.compress(b"t\nso bad\n", mtime=0),
    ]
    ranges = [b"bytes=3-9", b"bytes=-5", b"bytes=7-", b"bytes=18446744073709551615-", b"bytes=0-0,2-3"]
    return ([bytes([route]) + json.dumps(body).encode() for route in range(16) for body in bodies] +
            [bytes([route]) + json.dumps(body).encode() for route in (9, 11, 19, 20) for body in labels] +
            [bytes([route]) + each for route in (16, 17) for each in rows] + first_byte([b"\x12"], ranges))


def queue():
    item = {"text": "a", "source": "s", "item": {"id": 1}}
    key = {"key": "k", "request": 7, "answer": {"flush_id": 1}}
    flush = {"record": "flush", "ms": 3000, "taken": 1, "delivered": True, "results": [{"id": 1, "label": "x"}]}
    records = [json.dumps(record).encode() for record in (
        {"record": "start", "version": 1, "queue": "q", "next_number": 0, "next_flush": 1},
        {"record": "add", "ms": 1000, "items": [item], **key},
        {**flush, "items": [item], **key},
        {"record": "key", "ms": 5, **key},
        {"record": "acknowledge", "flush": 1})]
    heads = [struct.pack("<I", len(record)) for record in records]
    framed = b"".join(head + struct.pack("<I", zlib.crc32(record, zlib.crc32(head))) + record
                      for head, record in zip(heads, records))
    return [framed, b"\n".join(records), b"[[[["]


def proxies():
    return [b"10.0.0.0/8,fd00::/8,unix\n10.0.0.1\n1.1.1.1, 10.0.0.2\n[2001:db8::1]:443,fd00::7\n",
            b"unix\nunix\n2.2.2.2:80\n", b"::/0\n::1\n::ffff:1.2.3.4"]


def body():
    return [b'{"inputs":["a","b"],"truncate":null,"x":{"y":[1,2.5,-3e9,true]}}', rb'"\u00e4\ud83d\ude00"',
            b"[[[[[[]]]]]]", b'{"a":1,"a":2}', *files("serve/*.json")]


def serve_config():
    page = (root / "docs/serve.md").read_text()
    return [block.encode() for block in re.findall(r"```yaml\n(.*?)```", page, re.S)] + [
        b"models: {a: {path: x}}\n", b"models: [a, b]\nqueues: {q: {model: a}}\n", b"&a [*a]"]


def time_zone():
    names = ("America/New_York", "Europe/Dublin", "Asia/Tehran", "UTC", "Australia/Lord_Howe")
    zones = [pathlib.Path("/usr/share/zoneinfo") / name for name in names]
    return [zone.read_bytes() for zone in zones if zone.is_file()] + [b"TZif2" + b"\0" * 39]


def configs():
    return files("models/*/config.json", "train/checkpoints/*/config.json")


def adapters():
    """The first byte is the rank."""
    small = b'{"r":2,"rank_pattern":{"query":0},"alpha_pattern":{"^bert.encoder.layer.0.attention.self.query$":9}}'
    return first_byte([b"\0", b"\1", b"\2"], files("adapters/*/adapter_config.json") + [small])


def safetensors():
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for dtype, size in (("F16", 4), ("I64", 16), ("BOOL", 2), ("F32", 8)):
        header[dtype] = {"dtype": dtype, "shape": [2], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    scalar = b'{"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}'
    made = [struct.pack("<Q", len(head)) + head + bytes(size) for head, size in ((text, at), (scalar, 4), (b"{}", 0))]
    return files("io/*.safetensors") + made


def pickles():
    """The data.pkl of each archive, the concatenated pickles of the old format, and opcodes not used there."""
    found = []
    for path in sorted((data / "io").glob("*.bin")):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                found += [archive.read(name) for name in archive.namelist() if name.endswith("/data.pkl")]
        else:
            found.append(path.read_bytes())
    return found + [b"\x80\x02}(U\x01aK\x01U\x01bK\x02u.", b"\x80\x02](K\x01K\x02eK\x03a.",
                    b"\x80\x02ccollections\nOrderedDict\n)R(U\x01aK\x01u}U\x09_metadataK\x01sb.",
                    b"\x80\x02ctorch\nmake\n(X\x01\x00\x00\x00aG?\xf0\x00\x00\x00\x00\x00\x00tRq\x01h\x01\x86."]


def compress():
    text = b"hello hello hello\n" + bytes(range(256))
    packed = gzip.compress(text, mtime=0)
    # zstd: one frame with a raw block, then a skippable frame.
    raw = b"\x28\xb5\x2f\xfd\x20\x05\x29\x00\x00hello"
    skipped = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    return [b"\x03" + packed, b"\x03" + packed + packed, b"\x02" + packed, b"\x01" + raw, b"\x05" + raw + skipped + raw,
            b"\x02plain", b"\x03\x1f\x8b"]


def conll():
    return [b"EU NNP B-ORG\nx y O\n\n-DOCSTART- O O\n# c\nz z O", b"a\tO\nb\tB-X\n\n", b"# O\n",
            b'{"tokens": ["a", "b"], "ner_tags": ["B-X", 0]}\n', b"\xef\xbb\xbfa\tO\r\nb\tI-X\r\n\r\n",
            *(b"".join(line.split()[0] + b"\tB-X\n" for line in each.splitlines() if line.split())[:2000]
              for each in files("tokenizers/fastbpe_phobert/vocab.txt"))]


def csv():
    tables = files("forecast/*.csv") + [b"text,label\nhello,pos\n\"a, \"\"b\"\"\",neg\r\n", b"text\nx\n\ny\r\n", b"SQLite format 3\0a,b\nc,d\n",
                                        b"\xef\xbb\xbfid,text\n1,\"a\nb\"\n2,c", b"\"text\"\n\"\"\n\"\n",
                                        b"a,text,b\n1,2\n1,2,3,4\n\"x\"y,2,3\n\"open,2,3\n4,5,6\n"]
    return first_byte([b"0", b"9"], tables)


def jsonl():
    lines = [line for each in files("tokenizers/pairs.jsonl", "tokenizers/decoders.jsonl", "vader_golden.jsonl")
             for line in each.splitlines()[:5]]
    return lines + [b'{"text":"hello","n":[1,2.5e3,{"a":null}],"ok":true}', rb'{"a":"\ud83d\ude00\n\u0041"}', b"{}",
                    b'{"a":{"b":[[],{}]},"c":-0.0}', b"[1]", rb'{"\u0061":1,"a":2}']


def series():
    tables = files("forecast/train.csv", "forecast/test.csv", "forecast/baselines.csv") + [
        b"unique_id,ds,y\nA,2016-07-01,1\nA,2016-07-02,2\nB,2016-07-05,3\nB,2016-07-06,4\n",
        b"id,V1,V2\nA,1,2\nB,3,\n", b"ds,unique_id,y\n1,A,1\n1,B,10\n2,A,2\n2,B,20\n",
        b"date,a,b\n2016-07-01 00:00:00,5.5,30\n2016-07-01 01:00:00,,31\n",
        b'{"item_id":"T","start":"2012-01-01","target":[1, null, 3],"freq":"M"}\n',
        b"ds,y\n2015-01-31,1\n2015-02-28,2\n2015-04-30,4\n",
        b"unique_id,ds,y,p,q,r\nA,1,1,5,6,7\nA,2,2,5,,7\nA,3,,5,,\nB,1,1,,2,3\nB,2,2,4,2,3\n",
        b'{"item_id":"T","target":[1,null,3],"p":[1,2,3,4],"q":[1,null,2],"r":5}\n']
    return first_byte([b"x", b"-", b"}", b"Z", b"<"], tables)


def timestamps():
    return [b"2016-07-01 13:00:00\nH", b"2016-02-29\nM", b"2016Q3\nQ", b"2015-01-02T13:05:09.25+05:30\nB",
            b"20160701\nD", b"17\nindex", b"9999-12-31\n15min", b"0001-01-01\nY", b"-5\n3index"]


def patterns():
    """Every regular expression of the tokenizers in tests/data, with a text to search."""
    found = set()

    def walk(value):
        if isinstance(value, dict):
            if isinstance(value.get("Regex"), str):
                found.add(value["Regex"])
            value = list(value.values())
        if isinstance(value, list):
            for each in value:
                walk(each)

    for text in files("tokenizers/*/tokenizer.json"):
        walk(json.loads(text))
    return ([pattern.encode() + b"\nit's 12 o'clock" for pattern in sorted(found)] +
            [b"(?i:'s|[a-z]{1,3}?)++(?!\\S)\nabc's", b"[^\\s\\p{L}[0-9]]*|(?<=a)b$\n(ab)"])


def charsmaps():
    found = []
    for text in files("tokenizers/*/tokenizer.json"):
        found += [base64.b64decode(each) for each in re.findall(r'"precompiled_charsmap":\s*"([^"]+)"', text.decode())]
    return found


def texts():
    found = []
    for golden in files("tokenizers/*/golden.jsonl"):
        for line in golden.splitlines():
            text = json.loads(line).get("text")
            found += [text.encode("utf-8", "surrogatepass")] if isinstance(text, str) else []
    return sorted(set(found)) + [b"\xff\xc3 \xe2\x80\x8d"]


def fastbpe():
    folders = sorted(data.glob("tokenizers/fastbpe_*"))
    return [(folder / "bpe.codes").read_bytes() + b"\0" + (folder / "vocab.txt").read_bytes() for folder in folders] + [
        b"a b 1\nab ab 1\n\0a@@ 1\nb 2\n"]


SEEDS = {
    "adapter": adapters, "body": body, "charsmap": charsmaps, "compress": compress, "conll": conll, "csv": csv,
    "fastbpe": fastbpe, "framing": framing, "gliner_config": lambda: files("gliner/*/gliner_config.json"),
    "hf_config": configs, "jsonl": jsonl, "pickle": pickles, "proxies": proxies, "queue": queue, "regex": patterns,
    "routes": routes, "safetensors": safetensors, "serve_config": serve_config, "series_reader": series,
    "shape": configs, "spm_model": lambda: files("tokenizers/*/*.model"), "time_zone": time_zone,
    "timestamps": timestamps, "tokenizer_encode": texts,
    "tokenizer_json": lambda: files("tokenizers/*/tokenizer.json"), "torch_bin": lambda: files("io/*.bin"),
    "zip": lambda: files("io/*.bin"),
}


def seeds_of(target):
    return small(SEEDS[target](), target) if target in SEEDS else []
