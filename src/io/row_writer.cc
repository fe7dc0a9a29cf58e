// SPDX-License-Identifier: Apache-2.0
#include "io/row_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/log.h"

namespace brim {
namespace {

const std::string kPrefix = "predicted_";

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool any_of(const std::vector<std::string>& names, const std::vector<std::string>& taken) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return contains(taken, name); });
}

// "a", "a.1", "a.2": an object cannot hold one key twice.
std::vector<std::string> made_unique(const std::vector<std::string>& names) {
  std::set<std::string> taken(names.begin(), names.end());
  std::set<std::string> used;
  std::vector<std::string> out;
  for (const std::string& name : names) {
    std::string candidate = name;
    for (int i = 1; used.count(candidate) != 0 || (i > 1 && taken.count(candidate) != 0); ++i)
      candidate = name + "." + std::to_string(i);
    used.insert(candidate);
    out.push_back(candidate);
  }
  return out;
}

void append_entities(std::string& out, std::span<const EntitySpan> entities) {
  out += '[';
  for (const EntitySpan& entity : entities) {
    if (&entity != entities.data()) out += ',';
    out += "{\"entity_group\":";
    append_json_string(out, entity.entity_group);
    out += ",\"score\":";
    append_json_number(out, entity.score);
    out += ",\"word\":";
    append_json_string(out, entity.word);
    out += ",\"start\":";
    append_json_number(out, entity.start);
    out += ",\"end\":";
    append_json_number(out, entity.end);
    out += '}';
  }
  out += ']';
}

// "name": for each, as it stands in an object.
std::vector<std::string> json_keys(const std::vector<std::string>& names) {
  std::vector<std::string> keys;
  for (const std::string& name : names) {
    append_json_string(keys.emplace_back(), name);
    keys.back() += ':';
  }
  return keys;
}

// Begins the next member of the object that `out` ends in.
void member(std::string& out, std::string_view key) {
  if (out.back() != '{') out += ',';
  out.append(key);
}

std::string_view trimmed(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r\n") + 1 - begin);
}

}  // namespace

const char* output_format_name(OutputFormat format) {
  switch (format) {
    case OutputFormat::csv:
      return "csv";
    case OutputFormat::tsv:
      return "tsv";
    case OutputFormat::jsonl:
      return "jsonl";
  }
  return "csv";
}

OutputFormat parse_output_format(std::string_view name) {
  for (OutputFormat format : {OutputFormat::csv, OutputFormat::tsv, OutputFormat::jsonl})
    if (name == output_format_name(format)) return format;
  fail(ErrorCode::usage, "--output-format {}: use auto, csv, tsv or jsonl", name);
}

OutputFormat output_format_of(std::string_view path, RowFormat input) {
  const RowFormat named = row_format_of(path);
  switch (named == RowFormat::txt ? input : named) {
    case RowFormat::tsv:
      return OutputFormat::tsv;
    case RowFormat::jsonl:
      return OutputFormat::jsonl;
    default:
      return OutputFormat::csv;
  }
}

RowWriter::RowWriter(const RowSchema& schema, RowWriterOptions options)
    : schema_(schema), options_(std::move(options)) {
  const bool delimited_in = schema_.format == RowFormat::csv || schema_.format == RowFormat::tsv;
  delimiter_ = options_.format == OutputFormat::tsv ? '\t' : ',';
  raw_copy_ = delimited_in && options_.format != OutputFormat::jsonl && schema_.dialect.delimiter == delimiter_;
  std::string prefix;
  while (any_of(our_names(prefix), schema_.columns)) prefix += kPrefix;
  added_ = our_names(prefix);
  keys_ = json_keys(added_);
  prefixed_keys_ = json_keys(our_names(prefix + kPrefix));
  score_keys_ = json_keys(options_.score_names);
  column_keys_ = json_keys(made_unique(schema_.columns));
}

std::vector<std::string> RowWriter::our_names(const std::string& prefix) const {
  std::vector<std::string> names;
  if (options_.entities) return {prefix + "entities"};
  names = {prefix + "label", prefix + "score"};
  if (options_.score_names.empty()) return names;
  if (options_.format == OutputFormat::jsonl && !options_.scores_at_top) {
    names.push_back(prefix + "scores");
  } else {
    for (const std::string& name : options_.score_names) names.push_back(prefix + name);
  }
  return names;
}

// In a dialect without quotes nothing may be quoted; ours never hold a tab or a line end there (JSON escapes them).
void RowWriter::field(std::string& out, std::string_view value) const {
  if (raw_copy_ && !schema_.dialect.quotes) {
    out.append(value);
  } else {
    append_csv_field(out, value, delimiter_);
  }
}

void RowWriter::header(std::string& out) const {
  if (options_.format == OutputFormat::jsonl) return;
  if (raw_copy_) {
    if (schema_.byte_order_mark) out += "\xEF\xBB\xBF";  // whoever wrote it (Excel) wants to read it again
    out += schema_.header;
  } else {
    for (size_t i = 0; i < schema_.columns.size(); ++i) {
      if (i > 0) out += delimiter_;
      field(out, schema_.columns[i]);
    }
  }
  for (size_t i = 0; i < added_.size(); ++i) {
    if (i > 0 || !schema_.columns.empty()) out += delimiter_;
    field(out, added_[i]);
  }
  out += '\n';
}

// --- csv, tsv ---

void RowWriter::begin_delimited(std::string& out, const RowChunk& chunk, size_t row) {
  switch (schema_.format) {
    case RowFormat::csv:
    case RowFormat::tsv:
      if (raw_copy_ && chunk.error(row) == nullptr) {
        out.append(chunk.records[row]);
      } else {
        csv_columns(out, chunk, row);
      }
      break;
    case RowFormat::jsonl:
      json_columns(out, chunk.records[row]);
      break;
    default:
      field(out, chunk.texts[row]);
  }
  if (!schema_.columns.empty()) out += delimiter_;
}

// The original fields one by one, brought to the header's width: missing ones are empty, surplus ones stay in the last
// field with their delimiters, a record whose quotes are wrong becomes the first field as it is.
void RowWriter::csv_columns(std::string& out, const RowChunk& chunk, size_t row) {
  const std::string_view record = chunk.records[row];
  const size_t width = schema_.columns.size();
  parse_csv_record(record, 0, true, schema_.dialect, csv_);
  const bool whole = csv_.status == CsvStatus::record && csv_.raw.size() == record.size();
  for (size_t i = 0; i < width; ++i) {
    if (i > 0) out += delimiter_;
    if (!whole) {
      if (i == 0) field(out, record);
    } else if (i + 1 == width && csv_.fields.size() > width) {
      const CsvField& from = csv_.fields[i];
      const char* begin = from.raw.data() - (from.quoted ? 1 : 0);
      field(out, record.substr(static_cast<size_t>(begin - record.data())));
    } else if (i < csv_.fields.size()) {
      field(out, csv_value(csv_.fields[i], scratch_));
    }
  }
}

void RowWriter::json_columns(std::string& out, std::string_view record) {
  const bool whole = scan_json_object(record, members_).what == nullptr;
  for (size_t i = 0; i < schema_.columns.size(); ++i) {
    if (i > 0) out += delimiter_;
    if (!whole) {
      if (i == 0) field(out, record);
      continue;
    }
    const JsonMember* found = nullptr;
    for (const JsonMember& candidate : members_)
      if (json_key_is(candidate, schema_.columns[i])) found = &candidate;
    if (found == nullptr || found->kind == JsonKind::null) continue;
    if (found->value_escaped) {
      scratch_.clear();
      append_json_unescaped(scratch_, found->value);
      field(out, scratch_);
    } else {
      field(out, found->value);
    }
  }
  if (!whole || warned_) return;
  for (const JsonMember& candidate : members_) {
    const std::string key = json_unescape(candidate.key);
    if (contains(schema_.columns, key)) continue;
    warned_ = true;
    log_warning("key \"{}\" is not among the columns at the file's start and is left out; jsonl output keeps all keys",
                key);
    return;
  }
}

// --- jsonl ---

// Whether the object has a key of ours itself. A search for the quoted name settles nearly every row.
bool RowWriter::json_clash(std::string_view record) {
  for (const std::string& key : keys_) {
    if (memmem(record.data(), record.size(), key.data(), key.size() - 1) == nullptr) continue;
    scan_json_object(record, members_);
    for (const JsonMember& candidate : members_)
      if (contains(added_, json_unescape(candidate.key))) return true;
    return false;
  }
  return false;
}

const std::vector<std::string>& RowWriter::begin_json(std::string& out, const RowChunk& chunk, size_t row) {
  const std::string_view record = chunk.records[row];
  if (schema_.format == RowFormat::jsonl) {
    if (chunk.error(row) == nullptr || scan_json_object(record, members_).what == nullptr) {
      const std::string_view object = trimmed(record);
      out.append(trimmed(object.substr(0, object.size() - 1)));
      return json_clash(object) ? prefixed_keys_ : keys_;
    }
    out += "{\"invalid_json\":";
    append_json_string(out, record);
    return keys_;
  }
  out += '{';
  if (schema_.format == RowFormat::txt) {
    out += "\"text\":";
    append_json_string(out, chunk.texts[row]);
    return keys_;
  }
  parse_csv_record(record, 0, true, schema_.dialect, csv_);
  const bool whole = csv_.status == CsvStatus::record && csv_.raw.size() == record.size() &&
                     csv_.fields.size() == schema_.columns.size();
  if (!whole) {
    out += "\"invalid_csv\":";
    append_json_string(out, record);
    return keys_;
  }
  for (size_t i = 0; i < csv_.fields.size(); ++i) {
    member(out, column_keys_[i]);
    append_json_string(out, csv_value(csv_.fields[i], scratch_));
  }
  return keys_;
}

// --- rows ---

void RowWriter::labelled(std::string& out, const RowChunk& chunk, size_t row, std::string_view label, float score,
                         std::span<const float> scores) {
  BRIM_CHECK(!options_.entities, "labels for a writer of entities");
  BRIM_CHECK(scores.size() == options_.score_names.size(), "{} scores for {} names", scores.size(),
             options_.score_names.size());
  if (options_.format != OutputFormat::jsonl) {
    auto number = [&](float value) {
      out += delimiter_;
      if (std::isfinite(value)) append_json_number(out, value);
    };
    begin_delimited(out, chunk, row);
    field(out, label);
    number(score);
    for (float value : scores) number(value);
    out += '\n';
    return;
  }
  const std::vector<std::string>& keys = begin_json(out, chunk, row);
  member(out, keys[0]);
  append_json_string(out, label);
  member(out, keys[1]);
  append_json_number(out, score);
  if (options_.scores_at_top) {
    for (size_t i = 0; i < scores.size(); ++i) {
      member(out, keys[2 + i]);
      append_json_number(out, scores[i]);
    }
  } else if (!scores.empty()) {
    member(out, keys[2]);
    out += '{';
    for (size_t i = 0; i < scores.size(); ++i) {
      member(out, score_keys_[i]);
      append_json_number(out, scores[i]);
    }
    out += '}';
  }
  out += "}\n";
}

void RowWriter::entities(std::string& out, const RowChunk& chunk, size_t row, std::span<const EntitySpan> entities) {
  BRIM_CHECK(options_.entities, "entities for a writer of labels");
  if (options_.format != OutputFormat::jsonl) {
    begin_delimited(out, chunk, row);
    json_.clear();
    append_entities(json_, entities);
    field(out, json_);
    out += '\n';
    return;
  }
  const std::vector<std::string>& keys = begin_json(out, chunk, row);
  member(out, keys[0]);
  append_entities(out, entities);
  out += "}\n";
}

void RowWriter::null_row(std::string& out, const RowChunk& chunk, size_t row) {
  if (options_.format != OutputFormat::jsonl) {
    begin_delimited(out, chunk, row);
    out.append(added_.size() - 1, delimiter_);
    out += '\n';
    return;
  }
  for (const std::string& key : begin_json(out, chunk, row)) {
    member(out, key);
    out += "null";
  }
  out += "}\n";
}

}  // namespace brim
