// SPDX-License-Identifier: Apache-2.0
// Reads files of probabilities, such as `brim score` writes with the scores of all labels.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "rows/labels.h"
#include "rows/row_reader.h"
#include "rows/row_writer.h"
#include "train/dataset.h"
#include "train/teachers.h"

namespace brim::train {
namespace {

constexpr double kSumTolerance = 0.02;  // rounded probabilities

rows::RowReaderOptions score_file_options(const TrainSettings& s) {
  rows::RowReaderOptions options;
  options.text_column = s.text_column;
  options.pair_column = s.pair_column;
  options.delimiter = s.delimiter;
  options.quotes = !s.no_quotes;
  return options;
}

[[noreturn]] void fail_without_column(const std::string& where, const std::string& label,
                                      const std::vector<std::string>& columns, const std::vector<std::string>& labels) {
  fail(ErrorCode::bad_data, Remedy{"name a column after each label"},
       "{}: no scores for label '{}'; the columns are {}, the student's labels {}", where, label, some_of(columns),
       some_of(labels));
}

// Columns of the labels' scores: those with the longest prefix, because the others were in the file that was scored.
std::vector<std::string> score_columns(const std::string& path, const std::vector<std::string>& columns,
                                       const std::vector<std::string>& labels) {
  const auto has = [&](const std::string& name) {
    return std::find(columns.begin(), columns.end(), name) != columns.end();
  };
  size_t longest = 0;
  for (const std::string& column : columns) longest = std::max(longest, column.size());
  std::vector<std::string> found;
  for (std::string prefix; prefix.size() <= longest; prefix += rows::kResultPrefix) {
    std::vector<std::string> names = labels;
    for (std::string& name : names) name.insert(0, prefix);
    if (std::all_of(names.begin(), names.end(), has)) found = names;
  }
  if (!found.empty()) return found;
  const auto missing = std::find_if_not(labels.begin(), labels.end(), has);
  fail_without_column(path, missing == labels.end() ? "" : *missing, columns, labels);
}

// The object with the labels' numbers: the results of the row, or the row itself if it has none.
const nlohmann::json& scores_of(const nlohmann::json& row) {
  const nlohmann::json* scores = &row;
  for (std::string name = "scores";; name.insert(0, rows::kResultPrefix)) {
    const auto nested = row.find(name);
    if (nested != row.end() && nested->is_object()) scores = &*nested;
    if (nested == row.end() && name != "scores") return *scores;
  }
}

// Reads the labels' numbers of one JSON object.
void read_json_scores(std::string_view record, const std::string& where, const std::vector<std::string>& labels,
                      std::vector<double>& values) {
  const auto row = nlohmann::json::parse(record, nullptr, false);
  if (!row.is_object()) fail(ErrorCode::bad_data, "{}: not a JSON object", where);
  const nlohmann::json& scores = scores_of(row);
  for (const std::string& label : labels) {
    const auto found = scores.find(label);
    if (found == scores.end()) {
      std::vector<std::string> keys;
      for (const auto& [key, value] : scores.items()) keys.push_back(key);
      fail_without_column(where, label, keys, labels);
    }
    if (!found->is_number()) fail(ErrorCode::bad_data, "{}: {} is {}, not a number", where, label, found->dump());
    values.push_back(found->get<double>());
  }
}

void check_scores(const std::vector<double>& values, const std::vector<std::string>& labels, bool multi_label,
                  const std::string& where, std::vector<float>& out) {
  double sum = 0;
  for (size_t k = 0; k < values.size(); ++k) {
    if (!(values[k] >= 0 && values[k] <= 1))
      fail(ErrorCode::bad_data, "{}: the score of {} is {}; it must be from 0 to 1", where, labels[k], values[k]);
    sum += values[k];
  }
  if (!multi_label && std::abs(sum - 1) > kSumTolerance)
    fail(ErrorCode::bad_data, Remedy{"write the probabilities of all labels"},
         "{}: the scores of a text add up to {:.4g}, not 1", where, sum);
  out.clear();
  for (const double v : values) out.push_back(static_cast<float>(multi_label ? v : v / sum));
}

}  // namespace

void read_score_file(const TrainSettings& s, const std::string& path, const std::vector<std::string>& labels,
                     bool multi_label,
                     const std::function<void(std::string_view, const std::optional<std::string_view>&,
                                              const std::vector<float>&)>& take) {
  rows::RowReaderOptions options = score_file_options(s);
  const rows::RowSchema schema = rows::RowReader({path}, options).schema();
  const bool json = schema.format == rows::RowFormat::jsonl;
  if (schema.format == rows::RowFormat::txt)
    fail(ErrorCode::usage, "{}: a file of scores must be csv, tsv or jsonl", path);
  if (!json) options.label_columns = score_columns(path, schema.columns, labels);
  rows::RowReader reader({path}, options);
  rows::RowChunk chunk;
  std::vector<double> values;
  std::vector<float> scores;
  while (reader.next_chunk(chunk))
    for (size_t r = 0; r < chunk.size(); ++r) {
      if (const Error* error = chunk.error(r)) throw placed_error(reader.inputs(), chunk, r, *error);
      const std::string where = fmt::format("{}:{}", path, chunk.lines[r]);
      values.clear();
      if (json)
        read_json_scores(chunk.records[r], where, labels, values);
      else
        for (size_t k = 0; k < labels.size(); ++k)
          values.push_back(rows::read_number(chunk.labels[r * labels.size() + k], where));
      check_scores(values, labels, multi_label, where, scores);
      take(chunk.texts[r], chunk.pair(r), scores);
    }
}

}  // namespace brim::train
