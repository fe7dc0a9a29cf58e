// SPDX-License-Identifier: Apache-2.0
#include "jobs/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/units.h"
#include "engine/entities.h"
#include "engine/entity_task.h"
#include "engine/label.h"
#include "engine/score_rows.h"
#include "io/quote_text.h"
#include "rows/conll.h"
#include "rows/labels.h"
#include "text/words.h"

namespace brim::jobs {
namespace {

bool is_tagged(const EvalRequest& r) {
  return std::any_of(r.inputs.begin(), r.inputs.end(),
                     [&](const std::string& path) { return rows::is_tagged_file(path, r.format); });
}

int32_t class_of(const std::vector<std::string>& labels, std::string_view label, const std::string& where) {
  const auto found = rows::find_label(labels, label);
  if (!found)
    fail(ErrorCode::bad_data,
         "{}: unknown label '{}' (labels of the model: {}); rename it in the data or remove these rows", where, label,
         fmt::join(labels, ", "));
  return *found;
}

// Metrics over part of the rows are not the requested ones.
void require_whole(const EvalRequest& r, int64_t rows) {
  if (r.stop != nullptr && r.stop->load())
    fail(ErrorCode::interrupted, "interrupted after {}; no results", format_count(rows, "row"));
}

// An unknown type would be counted as never found.
void require_known_types(const std::vector<std::string>& labels, const rows::TaggedWords& sentence,
                         const std::string& path) {
  for (size_t w = 0; w < sentence.tags.size(); ++w) {
    const engine::TagParts tag = engine::split_tag(sentence.tags[w]);
    if (tag.outside || std::any_of(labels.begin(), labels.end(),
                                   [&](const std::string& label) { return engine::split_tag(label).type == tag.type; }))
      continue;
    fail(ErrorCode::bad_data, "{}: line {}: unknown tag '{}' (labels of the model: {}); rename it in the data", path,
         sentence.line_of(w), sentence.tags[w], fmt::join(labels, ", "));
  }
}

Evaluation evaluate_tokens(Scorer& model, const EvalRequest& r) {
  // Sentences become lines of words separated by spaces; the pipeline returns one tag per word.
  Evaluation e;
  e.labels = model.labels();
  if (model.finds_entities_by_label()) e.labels = engine::tags_of(e.labels);
  e.precision = model.precision();
  std::vector<std::vector<std::string>> expected;
  std::vector<std::vector<text::WordSpan>> spans;
  std::vector<std::string> places;
  std::string text;
  for (const auto& path : r.inputs)
    for (const auto& sentence : rows::read_tagged(path, r.format, e.labels)) {
      require_known_types(e.labels, sentence, path);
      text::JoinedWords joined = text::join_words(sentence.words);
      text += joined.text + '\n';
      spans.push_back(std::move(joined.words));
      expected.push_back(rows::iob_to_bio(sentence.tags));
      places.push_back(fmt::format("{}:{}", path, sentence.line));
    }
  std::vector<std::vector<std::string>> predicted;
  rows::RowReaderOptions options;
  options.format = rows::RowFormat::txt;
  rows::RowReader reader(io::memory_source(r.inputs[0], std::move(text)), options);
  engine::PipelineOptions pipeline;
  pipeline.words = &spans;
  pipeline.stop = r.stop;
  int64_t words = 0, right = 0;
  score_rows(
      model, reader,
      [&](engine::ScoredChunk& chunk) {
        for (size_t row = 0; row < chunk.rows.size(); ++row) {
          const auto& want = expected.at(predicted.size());
          if (const Error* error = chunk.error(row))
            throw Error(error->code(), fmt::format("{}: {}", places[predicted.size()], error->problem()),
                        Remedy{error->remedy()});
          std::vector<std::string> tags;
          for (size_t w = 0; w < want.size(); ++w) {
            const int32_t tag = row < chunk.tags.size() && w < chunk.tags[row].size() ? chunk.tags[row][w] : -1;
            tags.push_back(tag >= 0 ? e.labels[static_cast<size_t>(tag)] : "O");
            e.predicted.push_back(tag);
          }
          predicted.push_back(rows::iob_to_bio(tags));
          for (size_t w = 0; w < want.size(); ++w) right += predicted.back()[w] == want[w];
          words += static_cast<int64_t>(want.size());
        }
      },
      [&](const engine::PipelineStats& now) {
        if (r.progress) r.progress(now.rows);
      },
      pipeline);
  e.rows = static_cast<int64_t>(predicted.size());
  require_whole(r, e.rows);
  if (e.rows == 0) fail(ErrorCode::bad_data, "{}: no labelled sentences", r.inputs[0]);
  e.entities = rows::entity_metrics(expected, predicted);
  e.token_accuracy = words > 0 ? static_cast<double>(right) / static_cast<double>(words) : 0;
  return e;
}

rows::RowReaderOptions reading_of(const EvalRequest& r) {
  rows::RowReaderOptions options;
  options.format = rows::parse_row_format(r.format);
  options.text_column = r.text_column;
  options.pair_column = r.pair_column;
  options.label_columns = r.label_columns;
  options.delimiter = r.delimiter;
  options.quotes = r.quotes;
  return options;
}

// Collects expected and predicted classes (or, for one output, numbers) of rows of texts.
class RowEvaluator {
 public:
  RowEvaluator(const Scorer& model, const EvalRequest& r)
      : r_(r), one_value_(model.score_names().size() == 1 && !model.multi_label()), counts_(model.labels().size()) {
    e_.precision = model.precision();
    e_.labels = model.labels();
    e_.multi_label = model.multi_label();
    if (r.label_columns.size() < 2) return;
    if (!e_.multi_label)
      fail(ErrorCode::usage,
           "`label_column={}`: several columns require a multi-label model, but this model has one label per row",
           fmt::join(r.label_columns, ","));
    for (const std::string& column : r.label_columns)
      column_class_.push_back(class_of(e_.labels, column, "`label_column`"));
  }

  void take(engine::ScoredChunk& chunk) {
    for (size_t row = 0; row < chunk.rows.size(); ++row) {
      const std::string where = r_.inputs[chunk.rows.input] + ":" + std::to_string(chunk.rows.lines[row]);
      if (const Error* error = chunk.error(row)) throw placed_error(r_.inputs, chunk.rows, row, *error);
      const float* scores = &chunk.scores[row * static_cast<size_t>(chunk.width)];
      ++e_.rows;
      if (one_value_) {
        expected_values_.push_back(rows::read_number(chunk.rows.labels[row], where));
        predicted_values_.push_back(static_cast<double>(scores[0]));
      } else if (e_.multi_label) {
        add_marks(&chunk.rows.labels[row * r_.label_columns.size()], scores, where);
      } else {
        e_.expected.push_back(class_of(e_.labels, chunk.rows.labels[row], where));
        e_.predicted.push_back(chunk.choices[row].label);
      }
    }
  }

  Evaluation finish() {
    require_whole(r_, e_.rows);
    if (e_.rows == 0) fail(ErrorCode::bad_data, "{}: no labelled rows", r_.inputs[0]);
    if (one_value_)
      e_.numbers = rows::regression_metrics(expected_values_, predicted_values_);
    else if (e_.multi_label)
      e_.classes = counts_.metrics();
    else
      e_.classes = rows::classification_metrics(e_.expected, e_.predicted, static_cast<int32_t>(e_.labels.size()));
    return std::move(e_);
  }

 private:
  // A row of a multi-label model: one column with names, or one column per class.
  void add_marks(const std::string_view* values, const float* scores, const std::string& where) {
    const size_t K = e_.labels.size(), C = r_.label_columns.size(), at = e_.expected.size();
    e_.expected.resize(at + K, 0);
    if (C > 1)
      for (size_t c = 0; c < C; ++c)
        e_.expected[at + static_cast<size_t>(column_class_[c])] =
            rows::read_mark(values[c], where, r_.label_columns[c]);
    else
      for (const auto& name : rows::split_names(values[0], '|'))
        e_.expected[at + static_cast<size_t>(class_of(e_.labels, name, where))] = 1;
    for (size_t k = 0; k < K; ++k) e_.predicted.push_back(engine::is_given(scores[k]));
    counts_.add({&e_.expected[at], K}, {&e_.predicted[at], K});
  }

  const EvalRequest& r_;
  const bool one_value_;  // regression and rerankers: labels are numbers
  Evaluation e_;
  std::vector<int32_t> column_class_;
  rows::MultiLabelCounts counts_;
  std::vector<double> expected_values_, predicted_values_;
};

}  // namespace

Evaluation evaluate(Scorer& model, const EvalRequest& r) {
  if (model.kind() == ModelKind::tagger) {
    if (!is_tagged(r))
      fail(ErrorCode::usage, Remedy{"set `format=conll` to read the file as CoNLL"},
           "{}: evaluating a token model requires tagged words: CoNLL (one word and tag per line) or jsonl with "
           "\"tokens\" and \"ner_tags\"",
           r.inputs[0]);
    return evaluate_tokens(model, r);
  }
  if (is_tagged(r))
    fail(ErrorCode::usage,
         "{}: tagged words require a token model, but this model classifies texts; use csv, tsv or jsonl", r.inputs[0]);
  if (!r.pair_column.empty()) {
    if (auto problem = model.why_no_pairs()) throw *problem;
  }
  rows::RowReader reader(r.inputs, reading_of(r));
  RowEvaluator evaluator(model, r);
  engine::PipelineOptions pipeline;
  pipeline.stop = r.stop;
  score_rows(
      model, reader, [&](engine::ScoredChunk& chunk) { evaluator.take(chunk); },
      [&](const engine::PipelineStats& now) {
        if (r.progress) r.progress(now.rows);
      },
      pipeline);
  Evaluation e = evaluator.finish();
  e.blank_lines = reader.blank_lines();
  return e;
}

}  // namespace brim::jobs
