// SPDX-License-Identifier: Apache-2.0
#include "rows/row_writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"

namespace brim::rows {
namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool any_of(const std::vector<std::string>& names, const std::vector<std::string>& taken) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return contains(taken, name); });
}

// "a", "a.1", "a.2": an object cannot hold a key twice.
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

// Formats each name as a JSON key: "name":
std::vector<std::string> json_keys(const std::vector<std::string>& names) {
  std::vector<std::string> keys;
  for (const std::string& name : names) {
    append_json_string(keys.emplace_back(), name);
    keys.back() += ':';
  }
  return keys;
}

// Begins the next member of the object at the end of `out`.
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
  fail(ErrorCode::usage, "unknown `output_format={}`; use auto, csv, tsv or jsonl", name);
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
  // Added fields may contain commas, which require quotes.
  raw_copy_ = delimited_in && options_.format != OutputFormat::jsonl && schema_.dialect.delimiter == delimiter_ &&
              (schema_.dialect.quotes || delimiter_ == '\t');
  std::string prefix;
  while (any_of(our_names(prefix), schema_.columns)) prefix += kResultPrefix;
  added_ = our_names(prefix);
  keys_ = json_keys(added_);
  prefixed_keys_ = json_keys(our_names(prefix + kResultPrefix));
  for (const ResultColumns& columns : options_.results) score_keys_.push_back(json_keys(columns.score_names));
  column_keys_ = json_keys(made_unique(schema_.columns));
}

std::vector<std::string> RowWriter::our_names(const std::string& prefix) const {
  std::vector<std::string> names;
  for (const ResultColumns& columns : options_.results) {
    const std::string before = prefix + (columns.name.empty() ? "" : columns.name + "_");
    if (columns.entities) {
      names.push_back(before + "entities");
      continue;
    }
    names.push_back(before + "label");
    names.push_back(before + "score");
    if (columns.score_names.empty()) continue;
    if (options_.format == OutputFormat::jsonl && !columns.scores_at_top) {
      names.push_back(before + "scores");
    } else {
      for (const std::string& name : columns.score_names) names.push_back(before + name);
    }
  }
  return names;
}

// A dialect without quotes cannot quote; added fields never contain a tab or a line end there (JSON escapes them).
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
    if (schema_.byte_order_mark) out += "\xEF\xBB\xBF";  // keep the BOM for programs that need it (Excel)
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
      field(out, chunk.records[row]);
  }
  if (!schema_.columns.empty()) out += delimiter_;
}

// Writes the original fields one by one, adjusted to the header's width: missing fields are empty, surplus fields stay
// in the last field with their delimiters, and a record with invalid quoting becomes the first field unchanged.
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
    log_warning("key \"{}\" is not among the columns of the first rows and is omitted; jsonl output keeps all keys",
                key);
    return;
  }
}

// --- jsonl ---

// Whether the object already contains one of the added keys. A search for the quoted name decides almost every row.
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
    if (chunk.error(row) == nullptr || (scan_json_object(record, members_).what == nullptr && is_valid_utf8(record))) {
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
    append_json_string(out, record);
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

void RowWriter::row(std::string& out, const RowChunk& chunk, size_t row, std::span<const RowResult> results) {
  BRIM_CHECK(results.size() == options_.results.size(), "{} results for {} models", results.size(),
             options_.results.size());
  for (size_t m = 0; m < results.size(); ++m)
    BRIM_CHECK(results[m].scores.size() == options_.results[m].score_names.size(), "{} scores for {} names",
               results[m].scores.size(), options_.results[m].score_names.size());
  if (options_.format != OutputFormat::jsonl) {
    begin_delimited(out, chunk, row);
    for (size_t m = 0; m < results.size(); ++m) {
      if (m > 0) out += delimiter_;
      put_delimited(out, options_.results[m], results[m]);
    }
    out += '\n';
    return;
  }
  const std::vector<std::string>& keys = begin_json(out, chunk, row);
  size_t key = 0;
  for (size_t m = 0; m < results.size(); ++m) key = put_json(out, keys, key, m, results[m]);
  out += "}\n";
}

void RowWriter::put_delimited(std::string& out, const ResultColumns& columns, const RowResult& result) {
  if (columns.entities) {
    json_.clear();
    append_entities(json_, result.entities);
    field(out, json_);
    return;
  }
  const auto number = [&](float value) {
    out += delimiter_;
    if (std::isfinite(value)) append_json_number(out, value);
  };
  field(out, result.label);
  number(result.score);
  for (const float value : result.scores) number(value);
}

size_t RowWriter::put_json(std::string& out, const std::vector<std::string>& keys, size_t key, size_t model,
                           const RowResult& result) const {
  const ResultColumns& columns = options_.results[model];
  if (columns.entities) {
    member(out, keys[key++]);
    append_entities(out, result.entities);
    return key;
  }
  member(out, keys[key++]);
  append_json_string(out, result.label);
  member(out, keys[key++]);
  append_json_number(out, result.score);
  if (columns.scores_at_top) {
    for (const float value : result.scores) {
      member(out, keys[key++]);
      append_json_number(out, value);
    }
  } else if (!result.scores.empty()) {
    member(out, keys[key++]);
    out += '{';
    for (size_t i = 0; i < result.scores.size(); ++i) {
      member(out, score_keys_[model][i]);
      append_json_number(out, result.scores[i]);
    }
    out += '}';
  }
  return key;
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

}  // namespace brim::rows
