# SPDX-License-Identifier: Apache-2.0
"""Scores many Parquet files in shards, each row exactly once, with multiprocessing, Ray, Spark, Dask or Airflow. A shard is
a range of row groups of one file. Its part has a unique name and is published once, so retries, speculation and several
drivers are safe. Text files (csv, tsv, jsonl, txt) are split by `brim score --shard`; their shards can run here too.

    job = brim.bulk.plan("in/*.parquet", "out", text="text", keep=["id"])
    for shard in job.missing(): brim.bulk.run_shard(shard)        # anywhere, in any order, more than once
    brim.bulk.finish(job)                                         # verifies every part, writes _manifest.json and _SUCCESS
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import os
import pathlib
import zlib
from typing import Any, BinaryIO, TypeAlias

from . import _brim
from ._log import forward_log
from ._model import cores
from ._options import ANY, check_model_options, checked, choice, path, suggested_value, utf8, whole, words
from ._storage import Store, expand, is_s3, open_input, signature, writing
from .classifier import Classifier
from .errors import BadData, Error, UsageError
from .results import imported

_JOB = "_brim/job.json"
_MANIFEST, _OLD_MANIFEST = "_manifest.json", "manifest.json"
_FORMAT = 1
_NOTE = 2  # format of the metadata of a part; format 1 has no file checksum
_ROWS = 60_000
_OURS = ("label", "score", "all_scores")
_SEAL, _UNSEALED = "file_crc", "00000000"
_PIECE = 8 << 20
_log = logging.getLogger("brim")
_Name: TypeAlias = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Shard:
    """Row groups [begin, end) of one file, or a shard planned by the program. Small: all a worker needs."""

    place: str
    job: str
    id: int
    input: str
    signature: str
    begin: int
    end: int
    rows: int  # -1: unknown until read
    part: str


@dataclasses.dataclass(frozen=True)
class Job:
    """Inputs, model and output of a job."""

    place: str
    id: str
    model: str
    options: dict[str, Any]
    shards: tuple[Shard, ...]
    inputs: tuple[str, ...] = ()  # only for jobs planned by the program

    def missing(self) -> list[Shard]:
        """Shards that have no part yet."""
        published = Store.of(self.place).names("part-")  # S3 lists a thousand names per request
        return [shard for shard in self.shards if shard.part not in published]

    def __repr__(self) -> str:
        rows = "" if self.inputs else f", {sum(shard.rows for shard in self.shards):,} rows"
        return f"brim.bulk.Job({self.place!r}: {len(self.shards)} shards{rows})"


@checked
def plan(inputs: _Name | list[_Name], output: _Name, *, model: _Name = "", text: str = "text", keep: list[str] | None = None,
         all_scores: bool = False, on_error: str = "null", rows_per_shard: int = _ROWS, **settings: Any) -> Job:
    """Divides the row groups of the inputs into shards and writes the job to `output`. Repeating the call returns the same
    job; an output with a different job is rejected. `settings` are those of Classifier."""
    rows_per_shard = whole("rows_per_shard", rows_per_shard, 1, ANY)
    choice("on_error", on_error, ("null", "raise"))
    words("text", text, '"text"')
    if isinstance(keep, str):
        raise UsageError(f'keep="{keep}" is a str', f'use a list: keep=["{keep}"]')
    if keep is not None and not (isinstance(keep, (list, tuple)) and all(isinstance(name, str) for name in keep)):
        raise UsageError(f"keep={keep!r} is not a list of columns", 'use a list: keep=["id"]')
    for name in keep or []:
        utf8("keep", name)
    check_model_options(settings)
    if settings.get("adapter"):
        settings["adapter"] = path("adapter", settings["adapter"])
    model, output, kept = path("model", model), path("output", output), list(keep or [])
    patterns = [path("inputs", one) for one in inputs] if isinstance(inputs, (list, tuple)) else [path("inputs", inputs)]
    if not patterns:
        raise UsageError("inputs=[]: no inputs", "pass files or a pattern")
    names = [name for pattern in patterns for name in expand(pattern)]
    files = [(name, signature(name), _row_groups(name, [text, *kept])) for name in names]
    taken = [name for name in kept if name in _OURS]
    if taken:
        raise UsageError(f'keep=["{taken[0]}"]: the output has a column of this name', "rename the column")
    options = {"text": text, "keep": kept, "all_scores": all_scores, "on_error": on_error,
               "rows_per_shard": rows_per_shard, "settings": settings}
    digest = _model_hash(model, settings.get("adapter"))
    described = {"format": _FORMAT, "inputs": [(name, sign) for name, sign, _ in files], "model": digest,
                 "options": options}
    job_id = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
    where = output if is_s3(output) else str(pathlib.Path(output).absolute())
    shards: list[Shard] = []
    for name, sign, groups in files:
        for begin, end, rows in _cut(groups, rows_per_shard):
            shards.append(Shard(where, job_id, len(shards), name, sign, begin, end, rows, _part(len(shards))))
    data = {"format": _FORMAT, "unit": "row_groups", "job": job_id, "model_name": model, "model": digest, "options": options,
            "shards": [dataclasses.asdict(shard) for shard in shards]}
    store = Store.of(where)
    if not store.put(_JOB, json.dumps(data, indent=1).encode()):
        existing = _read_job(store)
        if existing.id != job_id:
            raise UsageError(f"{where} holds another job: its inputs, model or options differ",
                             "use an empty output, or plan with the inputs, model and options of that job")
    return Job(where, job_id, model, options, tuple(shards))


@checked
def load(output: _Name) -> Job:
    """The job planned in `output`."""
    output = path("output", output)
    return _read_job(Store.of(output if is_s3(output) else str(pathlib.Path(output).absolute())))


@checked
def run_shard(shard: Shard, *, threads: int | None = None) -> str:
    """Scores a shard and publishes its part, unless it exists. Returns the part's name. `threads` overrides the job's
    setting for this process."""
    if not isinstance(shard, Shard):
        raise UsageError(f"expected a Shard, got {type(shard).__name__}", "pass one of job.missing()")
    if threads is not None:
        whole("threads", threads, 0)
    store = Store.of(shard.place)
    if not shard.part.endswith(".parquet"):
        try:
            _brim.run_shard(shard.place, shard.id, cores(threads))
        finally:
            forward_log()
        return shard.part
    if store.has(shard.part):
        _described_part(store, shard)
        return shard.part
    job = _job_of(shard.place, shard.job)
    if signature(shard.input) != shard.signature:
        raise BadData(f"{shard.input} has changed since the job was planned", "plan the job again with an empty output")
    settings = job.options["settings"] if threads is None else {**job.options["settings"], "threads": threads}
    classifier = _classifier(job.model, shard.job, json.dumps(settings, sort_keys=True))
    with store.draft() as draft:
        _write_part(job, shard, classifier, draft)
        if not store.publish(draft, shard.part):
            _described_part(store, shard)  # another worker was faster; raises for a part of another job
    return shard.part


@checked
def run(job: Job, tries: int = 3) -> list[tuple[Shard, Error]]:
    """Runs all missing shards in this process; returns those that failed `tries` times with their errors."""
    whole("tries", tries)
    check_job(job)
    failed: list[tuple[Shard, Error]] = []
    for shard in job.missing():
        for attempt in range(1, tries + 1):
            try:
                run_shard(shard)
                break
            except Error as error:
                _log.warning("shard %d, attempt %d of %d: %s", shard.id, attempt, tries, error)
                if attempt == tries:
                    failed.append((shard, error))
    return failed


@checked
def finish(job: Job) -> dict[str, Any]:
    """Verifies that every part exists, is intact and belongs to this job; writes _manifest.json and _SUCCESS."""
    check_job(job)
    store = Store.of(job.place)
    if job.inputs:
        _brim.finish_shards(job.place)
        return _read_manifest(store)
    missing = job.missing()
    if missing:
        raise BadData(f"{len(missing)} of {len(job.shards)} shards have no part: {_ranges([s.id for s in missing])}",
                      "run them: brim.bulk.run(job)")
    parts = []
    for shard in job.shards:
        note = _described_part(store, shard)
        if not _is_whole(store, shard, note):
            raise BadData(f"{store.path(shard.part)} is damaged", "remove it and run its shard again")
        parts.append({"part": shard.part, "input": shard.input, "rows": shard.rows, "crc": note["crc"]})
    manifest = {"format": _FORMAT, "job": job.id, "rows": sum(s.rows for s in job.shards), "parts": parts}
    store.put(_MANIFEST, json.dumps(manifest, indent=1).encode())
    store.put("_SUCCESS", b"")
    _remove_old_manifest(store, job)
    store.remove_drafts()
    return manifest


def _read_manifest(store: Store) -> dict[str, Any]:
    return dict(json.loads(store.read(_MANIFEST) or store.read(_OLD_MANIFEST) or b"{}"))


def _remove_old_manifest(store: Store, job: Job) -> None:
    """Removes manifest.json written by earlier versions, which readers of the folder take for data. Keeps other programs' files."""
    try:
        old = json.loads(store.read(_OLD_MANIFEST) or b"{}")
    except ValueError:
        return
    if isinstance(old, dict) and old.get("job") == job.id:
        store.remove(_OLD_MANIFEST)


def check_job(job: Any) -> None:
    if not isinstance(job, Job):
        raise UsageError(f"expected a Job, got {type(job).__name__}", "pass the result of brim.bulk.plan or brim.bulk.load")


def with_labels(classifier: Classifier, table: Any, text: str, plain: bool = False) -> Any:
    """An Arrow table with `label` and `score`; rows without a text have nulls. `plain`: labels as strings."""
    scored = classifier.predict(table[text], on_error="null").to_arrow()
    for name in scored.column_names:
        column = scored[name]
        table = table.append_column(name, column.cast("string") if plain and name == "label" else column)
    return table


def _write_part(job: Job, shard: Shard, classifier: Classifier, draft: str) -> None:
    pa, pq = imported("pyarrow"), imported("pyarrow.parquet")
    text, keep = job.options["text"], job.options["keep"]
    wanted = list(dict.fromkeys([text, *keep]))
    with open_input(shard.input) as file:
        try:
            groups = pq.ParquetFile(file)
            tables = [groups.read_row_group(group, columns=wanted) for group in range(shard.begin, shard.end)]
        except Error:
            raise  # from the store
        except (ValueError, OSError, NotImplementedError) as error:  # convert, because run() only counts brim.Error
            raise BadData(f"{shard.input}: row groups {shard.begin} to {shard.end - 1}: {error}",
                          "rewrite the file and plan the job again") from None
    table = pa.concat_tables(tables)
    result = classifier.predict(table[text], on_error=job.options["on_error"])
    scored = result.to_arrow(all_scores=job.options["all_scores"])
    out = pa.table({**{name: table[name] for name in keep}, **{name: scored[name] for name in scored.column_names}})
    if out.num_rows != shard.rows:
        raise BadData(f"{shard.input}: {out.num_rows} rows, expected {shard.rows}", "plan the job again")
    note = {"format": _NOTE, "job": shard.job, "shard": shard.id, "rows": shard.rows,
            "crc": _checksum(out["score"]), _SEAL: _UNSEALED}
    out = out.replace_schema_metadata({**(out.schema.metadata or {}), b"brim": json.dumps(note).encode()})
    with writing(draft), pq.ParquetWriter(draft, out.schema) as writer:
        at = 0
        for group in tables:  # same row groups as the input
            writer.write_table(out.slice(at, group.num_rows), row_group_size=max(1, group.num_rows))
            at += group.num_rows
    with writing(draft), open(draft, "r+b") as file:
        hole, _ = _seal(file)
        digits = _file_checksum(file, hole)
        file.seek(hole)
        file.write(digits)


def _is_whole(store: Store, shard: Shard, note: dict[str, Any]) -> bool:
    """Compares the file's checksum; in format 1 only that of the scores."""
    with store.open(shard.part) as file:
        try:
            if note.get("format") != 1:
                hole, digits = _seal(file)
                if _file_checksum(file, hole) != digits:
                    return False
                file.seek(0)
            scores = imported("pyarrow.parquet").read_table(file, columns=["score"])["score"]
        except Error:
            raise  # from the store
        except (ValueError, OSError, NotImplementedError):
            return False
    return _checksum(scores) == note.get("crc") and len(scores) == shard.rows


def _seal(file: BinaryIO) -> tuple[int, bytes]:
    """Offset and digits of the checksum in a part: in its metadata, which the footer stores as text."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))  # a file ends with the length of the footer and PAR1
    begin = max(0, size - 8 - int.from_bytes(file.read(4), "little"))
    file.seek(begin)
    footer = file.read()
    key = f'"{_SEAL}": "'.encode()
    at = footer.rindex(key) + len(key)  # the last occurrence: column statistics come before the metadata
    return begin + at, footer[at:at + len(_UNSEALED)]


def _file_checksum(file: BinaryIO, hole: int) -> bytes:
    """Checksum of all bytes, with zeros in place of its own digits."""
    crc = at = 0
    file.seek(0)
    while piece := file.read(min(hole - at, _PIECE) if at < hole else _PIECE):
        if at == hole:
            piece = _UNSEALED.encode() + piece[len(_UNSEALED):]
        crc = zlib.crc32(piece, crc)
        at += len(piece)
    return f"{crc:08x}".encode()


def _described_part(store: Store, shard: Shard) -> dict[str, Any]:
    """Reads the metadata of a part; raises for a part of another job."""
    with store.open(shard.part) as file:
        try:
            found = imported("pyarrow.parquet").read_schema(file).metadata or {}
            note: Any = json.loads(found.get(b"brim", b"{}"))
        except Error:
            raise  # from the store
        except (ValueError, OSError, NotImplementedError):
            note = {}
    if note.get("job") != shard.job or note.get("shard") != shard.id:
        raise BadData(f"{store.path(shard.part)} belongs to another job", "remove it, or plan with an empty output")
    return dict(note)


def _checksum(column: Any) -> int:
    crc = 0
    for chunk in column.chunks:
        crc = zlib.crc32(chunk.fill_null(-1.0).to_numpy().tobytes(), crc)
    return crc


def _row_groups(name: str, columns: list[str]) -> list[int]:
    pq = imported("pyarrow.parquet")
    with open_input(name) as file:
        try:
            opened = pq.ParquetFile(file)
        except Error:
            raise
        except (ValueError, OSError) as error:
            raise BadData(f"{name}: {error}", "use Parquet files; the brim program scores csv, jsonl and txt files in shards") from None
        names = opened.schema_arrow.names
        for column in columns:
            if column not in names:
                raise UsageError(f"{name}: no column {column!r}", suggested_value(column, names))
            if names.count(column) > 1:
                raise UsageError(f"{name}: {names.count(column)} columns are named {column!r}", "rename them")
        kind = opened.schema_arrow.field(columns[0]).type
        if not _holds_texts(kind):
            raise UsageError(f"{name}: column {columns[0]!r} has no texts: its type is {kind}", 'set text="…" to a column of strings')
        return [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]


def _holds_texts(kind: Any) -> bool:
    types = imported("pyarrow").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(check(kind) for check in (types.is_string, types.is_large_string, types.is_string_view, types.is_null))


def _cut(groups: list[int], rows_per_shard: int) -> list[tuple[int, int, int]]:
    """Ranges of row groups with at least `rows_per_shard` rows."""
    cuts, begin, rows = [], 0, 0
    for group, count in enumerate(groups):
        rows += count
        if rows >= rows_per_shard or group + 1 == len(groups):
            cuts.append((begin, group + 1, rows))
            begin, rows = group + 1, 0
    return [cut for cut in cuts if cut[2] > 0]


def _read_job(store: Store) -> Job:
    data = store.read(_JOB)
    if data is None:
        raise UsageError(f"{store.root} has no job", "plan one: brim.bulk.plan(inputs, output)")
    try:
        job = json.loads(data)
        if job["format"] != _FORMAT:
            raise BadData(f"{store.path(_JOB)} has format {job['format']}, this Brim supports {_FORMAT}",
                          "use the version that planned the job")
        if job.get("unit") == "bytes":
            shards = [Shard(store.root, job["job"], shard["id"], "", "", 0, 0, -1, shard["part"])
                      for shard in job["shards"]]
            return Job(store.root, job["job"], job["model_name"], job["options"], tuple(shards),
                       tuple(given["input"] for given in job["inputs"]))
        return Job(store.root, job["job"], job["model_name"], job["options"],
                   tuple(Shard(**{"part": _part(shard["id"]), **shard}) for shard in job["shards"]))
    except (ValueError, KeyError, TypeError):
        raise BadData(f"{store.path(_JOB)} is not a job file", "plan with an empty output") from None


@functools.lru_cache(maxsize=8)
def _job_of(output: str, job_id: str) -> Job:
    job = _read_job(Store.of(output))
    if job.id != job_id:
        raise UsageError(f"{output} has another job than the shard", "plan the job again")
    data = json.loads(Store.of(output).read(_JOB) or b"{}")
    if _model_hash(job.model, job.options["settings"].get("adapter")) != data["model"]:
        raise UsageError(f'model="{job.model}" has changed since the job was planned', "plan the job again with an empty output")
    return job


_open: dict[int, tuple[tuple[str, str, str], Classifier]] = {}


def _classifier(model: str, job_id: str, settings: str) -> Classifier:
    """One open model per process. The copy in a forked process has no threads, so it is neither used nor freed."""
    key, process = (model, job_id, settings), os.getpid()
    existing = _open.get(process)
    if existing is not None and existing[0] == key:
        return existing[1]
    opened = Classifier(model, **json.loads(settings))
    _open[process] = (key, opened)
    return opened


def _model_hash(model: str, adapter: str | None = None) -> str:
    if adapter:
        return f"{_model_hash(model)}+{_model_hash(adapter)}"
    directory = _brim.find_model(model)
    if not directory:
        return "rules"
    digest = hashlib.sha256()
    for entry in sorted(pathlib.Path(directory).iterdir()):
        if entry.suffix in (".json", ".txt", ".model", ".codes", ".safetensors", ".bin") and entry.is_file():
            digest.update(entry.name.encode() + b"\0")
            content = hashlib.sha256()
            with open(entry, "rb") as file:
                while block := file.read(1 << 20):
                    content.update(block)
            digest.update(content.digest())
    return digest.hexdigest()


def _part(number: int) -> str:
    return f"part-{number:05d}.parquet"


def _ranges(ids: list[int]) -> str:
    """Formats numbers as 3,17-20."""
    out: list[str] = []
    for begin in ids:
        if begin - 1 not in ids:
            end = begin
            while end + 1 in ids:
                end += 1
            out.append(str(begin) if begin == end else f"{begin}-{end}")
    return ",".join(out)
