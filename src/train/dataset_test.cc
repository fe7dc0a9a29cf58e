// SPDX-License-Identifier: Apache-2.0
// Labelled data: errors name the line, sub-words get the right tags, and the token cache returns exactly the stored
// rows or nothing.
#include "train/dataset.h"

#include <gtest/gtest.h>

#include <set>

#include "base/log.h"
#include "base/thread_pool.h"
#include "base/token.h"
#include "ops/loss.h"
#include "train/job.h"
#include "train/tiny_job.h"
#include "train/token_cache.h"

namespace brim::train {
namespace {

template <class T>
std::vector<T> list(std::span<const T> values) {
  return {values.begin(), values.end()};
}

TrainJob open(const TinyJob& t) {
  return open_train_job(t.settings, {[](const std::string&) {}});
}

std::string data_error(TinyJob& t, const std::string& csv, ErrorCode code = ErrorCode::bad_data) {
  put_file(t.dir / "train.csv", csv);
  return error_of(code, [&] { open(t); });
}

TEST(TrainData, ErrorsHaveFileAndLine) {
  TinyJob t;
  EXPECT_HAS(data_error(t, "text,label\nw5 w6,negative\nw7,\n"), "train.csv:3: no label in column label");
  EXPECT_HAS(data_error(t, "text,label\nw5 w6,negative\n  ,positive\n"), "train.csv:3: empty text");
  EXPECT_HAS(data_error(t, "text,label\nw5,negative\nw6,negative\n"), "only one label");
  EXPECT_HAS(data_error(t, "text,label\nw5,negative\nw6,positive,more\n"),
             "train.csv:3: 3 fields, but the header has 2");
  EXPECT_HAS(data_error(t, "text,label\nw5,negative\nw6\n"), "train.csv:3");
  EXPECT_HAS(data_error(t, "text,label\n"), "train.csv: no rows");
  EXPECT_HAS(data_error(t, "text,stance\nw5,negative\n", ErrorCode::usage), "label");
}

TEST(TrainData, OtherLabelsRequireIgnoreMismatchedHead) {
  TinyJob t;
  const std::string message = data_error(t, "text,label\nw5,joy\nw6,anger\nw7,joy\n");
  EXPECT_HAS(message, "anger, joy");
  EXPECT_HAS(message, "negative, neutral, positive");
  EXPECT_HAS(message, "`ignore_mismatched_head=true`");
  t.settings.ignore_mismatched_head = true;
  put_file(t.dir / "val.csv", "text,label\nw5,joy\n");
  const TrainJob job = open(t);
  EXPECT_EQ(job.labels.sequence, (std::vector<std::string>{"anger", "joy"}));
  EXPECT_EQ(job.shape.sequence_classes, 2);
  EXPECT_FALSE(job.new_tensors.empty());
  t.settings.ignore_mismatched_head = false;
}

TEST(TrainData, UnknownValidationLabelIsReportedWithItsLine) {
  TinyJob t;
  put_file(t.dir / "val.csv", "text,label\nw5,negative\nw6,angry\n");
  const std::string message = error_of(ErrorCode::bad_data, [&] { open(t); });
  EXPECT_HAS(message, "val.csv:3: unknown label 'angry'; known: negative, neutral, positive");
}

TEST(TrainData, SubsetOfTheModelsLabelsKeepsItsHead) {
  TinyJob t;
  put_file(t.dir / "train.csv", "text,label\nw5,positive\nw6,negative\n");
  const TrainJob job = open(t);
  EXPECT_EQ(job.labels.sequence, (std::vector<std::string>{"negative", "neutral", "positive"}));
  EXPECT_EQ(list(job.train_set.label), (std::vector<int32_t>{2, 0}));
  EXPECT_TRUE(job.new_tensors.empty());
}

TEST(TrainData, SortsNumericLabelsByValue) {
  TinyJob t("bert_encoder");
  std::string csv = "text,label\n";
  for (int i = 0; i < 12; ++i) csv += "w5," + std::to_string(i) + "\n";
  put_file(t.dir / "train.csv", csv);
  put_file(t.dir / "val.csv", csv);
  const TrainJob job = open(t);
  EXPECT_EQ(job.labels.sequence[2], "2");
  EXPECT_EQ(job.labels.sequence[11], "11");
}

TEST(TrainData, RowsStoreTheirSource) {
  TinyJob t;
  put_file(t.dir / "more.csv", "text,label\n\"w5\nw6\",neutral\nw7,positive\n");
  t.settings.train_files.push_back((t.dir / "more.csv").string());
  const TrainJob job = open(t);
  ASSERT_EQ(job.train_set.rows(), 50);
  EXPECT_EQ(job.train_set.file[47], 0);
  EXPECT_EQ(job.train_set.line[47], 49);
  EXPECT_EQ(job.train_set.file[49], 1);
  EXPECT_EQ(job.train_set.line[49], 4);  // a quoted text spans two lines
}

TEST(TrainData, TruncatesLongTextsBeforeTheLastToken) {
  TinyJob t;
  std::string words;
  for (int i = 0; i < 100; ++i) words += "w9 ";
  put_file(t.dir / "train.csv", "text,label\n" + words + ",positive\nw6,negative\n");
  t.settings.max_length = 10;
  const TrainJob job = open(t);
  EXPECT_EQ(job.train_set.length(0), 10);
  EXPECT_EQ(job.train_set.ids[0], 2);  // [CLS]
  EXPECT_EQ(job.train_set.ids[9], 3);  // [SEP]
  EXPECT_EQ(job.train_set.truncated, 1);
}

TEST(TrainData, MultiLabelRowsMayHaveSeveralOrNoLabels) {
  TinyJob t("bert_multilabel");
  t.settings.multi_label = true;
  put_file(t.dir / "train.csv", "text,label\nw5,negative|positive\nw6,neutral\nw7,\n");
  put_file(t.dir / "val.csv", "text,label\nw5,positive\n");
  t.settings.class_weights = "balanced";
  const TrainJob job = open(t);
  EXPECT_EQ(list(job.train_set.multi_label), (std::vector<float>{1, 0, 1, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(job.class_weights, (std::vector<float>{1, 1, 1}));
}

TEST(TrainData, ReadsMultiLabelFromOneColumnPerLabel) {
  TinyJob t("bert_multilabel");
  // The columns are not in the model's order, and one of its labels is not in the data.
  t.settings.label_columns = {"positive", "negative"};
  put_file(t.dir / "train.csv", "text,negative,positive\nw5,1,True\nw6,0,0\nw7,false,1\n");
  put_file(t.dir / "val.csv", "text,negative,positive\nw5,0,1\n");
  const TrainJob job = open(t);
  EXPECT_TRUE(job.shape.multi_label);
  EXPECT_EQ(job.labels.sequence, (std::vector<std::string>{"negative", "neutral", "positive"}));
  EXPECT_EQ(list(job.train_set.multi_label), (std::vector<float>{1, 0, 1, 0, 0, 0, 0, 0, 1}));

  TinyJob fresh("bert_encoder");
  fresh.settings.label_columns = {"toxic", "insult"};  // a new head uses the given order
  const std::string rows =
      "{\"text\": \"w5\", \"insult\": 0, \"toxic\": true}\n{\"text\": \"w6\", \"insult\": 1, \"toxic\": 0}\n";
  put_file(fresh.dir / "train.jsonl", rows);
  fresh.settings.train_files = {(fresh.dir / "train.jsonl").string()};
  fresh.settings.validation_files.clear();
  const TrainJob made = open(fresh);
  EXPECT_EQ(made.labels.sequence, (std::vector<std::string>{"toxic", "insult"}));
  EXPECT_EQ(list(made.train_set.multi_label), (std::vector<float>{1, 0, 0, 1}));
}

TEST(TrainData, InvalidMarksAreReportedWithFileLineColumnAndValue) {
  TinyJob t("bert_multilabel");
  t.settings.label_columns = {"negative", "positive"};
  t.settings.validation_files.clear();
  EXPECT_HAS(data_error(t, "text,negative,positive\nw5,1,0\nw6,0,maybe\n"),
             "train.csv:3: column positive: expected 0, 1, true or false, found 'maybe'");
  EXPECT_HAS(data_error(t, "text,negative,positive\nw5,,0\n"),
             "train.csv:2: column negative: expected 0, 1, true or false, found ''");
  EXPECT_HAS(data_error(t, "text,negative\nw5,1\n", ErrorCode::usage), "unknown column positive");
  t.settings.label_columns = {"negative", "negative"};
  EXPECT_HAS(data_error(t, "text,negative\nw5,1\n", ErrorCode::usage), "negative is given twice");
  t.settings.label_columns = {"negative", "positive"};
  t.settings.task = TaskChoice::multi;
  EXPECT_HAS(data_error(t, "text,negative,positive\nw5,1,0\n", ErrorCode::usage), "one label per row");
}

TEST(TrainData, FirstSubwordGetsTheTagAndIob1BecomesBio) {
  TinyJob t("bert_token");
  std::string vocab = get_file(t.dir / "model/vocab.txt");
  vocab.replace(vocab.find("w95\n"), 4, "##x\n");
  put_file(t.dir / "model/vocab.txt", vocab);
  put_file(t.dir / "train.conll", "w5x\tI-PER\nw6\tI-PER\nw7\tB-PER\nw8\tO\n\nw9\tI-LOC\n");
  t.settings.train_files = {(t.dir / "train.conll").string()};
  t.settings.validation_files.clear();
  const TrainJob job = open(t);
  ASSERT_EQ(job.labels.token, (std::vector<std::string>{"O", "B-PER", "I-PER", "B-LOC", "I-LOC"}));
  const int32_t no = ops::kIgnoredTarget;
  EXPECT_EQ(list(job.train_set.token_label), (std::vector<int32_t>{no, 1, no, 2, 1, 0, no, no, 3, no}));
  EXPECT_EQ(list(job.train_set.line), (std::vector<int32_t>{1, 6}));
}

TEST(TrainData, ReadsTaggedWordsInEveryFormat) {
  TinyJob t("bert_token");
  t.settings.validation_files.clear();
  const auto labels = [&](const std::string& name, const std::string& bytes) {
    put_file(t.dir / name, bytes);
    t.settings.train_files = {(t.dir / name).string()};
    return list(open(t).train_set.token_label);
  };
  const int32_t no = ops::kIgnoredTarget;
  const std::vector<int32_t> want = {no, 1, no, 0, no, no, 3, no};  // a word of two tokens is one word
  EXPECT_EQ(labels("a.conll", "w5 w6\tB-PER\nw7\tO\n\nw9\tI-LOC\n"), want);
  EXPECT_EQ(labels("a.txt", "w5 w6\tB-PER\nw7\tO\n\nw9\tI-LOC\n"), want);
  EXPECT_EQ(labels("a.jsonl",
                   "{\"tokens\": [\"w5 w6\", \"w7\"], \"ner_tags\": [\"B-PER\", \"O\"]}\n"
                   "{\"tokens\": [\"w9\"], \"ner_tags\": [\"B-LOC\"]}\n"),
            want);
  EXPECT_EQ(labels("n.jsonl",
                   "{\"tokens\": [\"w5 w6\", \"w7\"], \"ner_tags\": [1, 0]}\n"
                   "{\"tokens\": [\"w9\"], \"ner_tags\": [3]}\n"),
            want);
  TinyJob fresh("bert_encoder");  // no head to map the numbers to tags
  fresh.settings.validation_files.clear();
  fresh.settings.train_files = t.settings.train_files;
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { open(fresh); }), "n.jsonl: line 1: tag 1 is a number");
}

TEST(TrainData, UnknownTagAndIncompleteLineAreReported) {
  TinyJob t("bert_token");
  t.settings.validation_files.clear();
  t.settings.train_files = {(t.dir / "train.conll").string()};
  put_file(t.dir / "train.conll", "w5\tB-PER\nw6\tB-CORP\n");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { open(t); }), "B-CORP");
  put_file(t.dir / "train.conll", "w5\tB-PER\nw6\n");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { open(t); }), "train.conll: line 2");
}

TEST(TrainData, ParsesClassWeights) {
  TinyJob t;
  put_file(t.dir / "train.csv", "text,label\nw5,negative\nw6,negative\nw7,neutral\nw8,positive\n");
  t.settings.class_weights = "balanced";
  const auto weights = open(t).class_weights;
  ASSERT_EQ(weights.size(), 3u);
  EXPECT_FLOAT_EQ(weights[0], 4.0f / 6);
  EXPECT_FLOAT_EQ(weights[1], 4.0f / 3);
  t.settings.class_weights = "1,2,0.5";
  EXPECT_EQ(open(t).class_weights, (std::vector<float>{1, 2, 0.5}));
  t.settings.class_weights = "1,2";
  error_of(ErrorCode::usage, [&] { open(t); });
  t.settings.class_weights = "1,,2";
  error_of(ErrorCode::usage, [&] { open(t); });
}

// ---- token cache ----

constexpr int64_t kCacheLimit = int64_t{1} << 20;

// Collects a small set; the seed is its first token.
auto rows_from(int32_t seed) {
  return [seed](TrainRows& set) {
    set.ids = {seed, 2, 3};
    set.begin = {0, 1, 3};
    set.label = {0, 1};
    set.multi_label = {0.5f};
    set.token_label = {-100, 1, 2};
    set.file = {0, 0};
    set.line = {2, 3};
    set.truncated = 1;
  };
}

TEST(TrainData, RejectsLabelsThatAreNotUtf8) {
  TinyJob t;
  EXPECT_HAS(data_error(t, "text,label\nw5,negative\nw6,caf\xe9\n"), "train.csv:3: byte 7 (0xE9) is not UTF-8");
  put_file(t.dir / "train.conll", "w5 O\nw6 B-\xff\n");
  t.settings.train_files = {(t.dir / "train.conll").string()};
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { open(t); }), "train.conll: line 2: byte 6 (0xFF) is not UTF-8");
}

TEST(TrainData, SkipsBadRowsIfRequested) {
  TinyJob t;
  t.settings.skip_bad_rows = true;
  put_file(t.dir / "train.csv", "text,label\nw5,negative\nw6,\n  ,positive\nw7,positive,more\nw8,positive\n");
  put_file(t.dir / "val.csv", "text,label\nw5,negative\nw6,angry\n");
  for (const bool cached : {false, true}) {
    std::string lines;
    const TrainJob job = open_train_job(t.settings, {[&](const std::string& line) { lines += line + "\n"; }});
    EXPECT_EQ(job.tokens_cached, cached);
    EXPECT_EQ(job.train_set.rows(), 2);
    EXPECT_EQ(list(job.train_set.label), (std::vector<int32_t>{0, 2}));
    EXPECT_EQ(list(job.train_set.line), (std::vector<int32_t>{2, 6}));
    EXPECT_EQ(job.validation_set.rows(), 1);
    EXPECT_HAS(lines, "3 training rows skipped");
    EXPECT_HAS(lines, "1 validation row skipped");
    if (!cached) {
      EXPECT_HAS(lines, "train.csv:3: no label in column label");
    }
  }
  t.settings.skip_bad_rows = false;
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { open(t); }), "`on_error=skip`");
}

TEST(TrainData, SupportsOtherDelimiters) {
  TinyJob t;
  put_file(t.dir / "train.csv", "text;label\nw5, w6;negative\n\"w7;positive\n");
  put_file(t.dir / "val.csv", "text;label\nw5;negative\n");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { open(t); }), "set `delimiter=';'`");
  t.settings.delimiter = ';';
  t.settings.no_quotes = true;
  EXPECT_EQ(open(t).train_set.rows(), 2);
}

TEST(TrainData, NotesFractionalLabels) {
  EXPECT_HAS(note_on_labels({"0.25", "0.5", "1"}), "each of the 3 becomes a class");
  EXPECT_EQ(note_on_labels({"0", "1", "2"}), "");
  EXPECT_EQ(note_on_labels({"v1.5", "v2.0"}), "");
  TinyJob t("bert_encoder");
  put_file(t.dir / "train.csv", "text,label\nw5,0.25\nw6,0.75\n");
  t.settings.validation_files.clear();
  std::string lines;
  open_train_job(t.settings, {[&](const std::string& line) { lines += line + "\n"; }});
  EXPECT_HAS(lines, "fractional numbers (0.25, 0.75)");
}

TEST(TrainData, NotesClassesThatAreProbablyMistakes) {
  const std::vector<std::string> names = {"good", "Good ", "NaN", "bad", "GOOD"};
  const auto notes = notes_on_classes(names, {9, 2, 3, 1, 0});  // no row of GOOD: a class of the model
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_HAS(notes[0], "becomes a class (3 rows); remove rows without a label");
  EXPECT_HAS(notes[0], "NaN");
  EXPECT_HAS(notes[1], "differ only in case or spaces");
  EXPECT_EQ(notes[1].find("GOOD"), std::string::npos);
  EXPECT_EQ(notes[2], "only one training row each for 1 class: bad");
  EXPECT_TRUE(notes_on_classes({"a", "b c", "none"}, {2, 2, 2}).empty());
  std::vector<std::string> many;
  for (int i = 0; i < 12; ++i) many.push_back("id" + std::to_string(i));
  const auto unique = notes_on_classes(many, std::vector<int64_t>(12, 1));
  ASSERT_EQ(unique.size(), 1u);
  EXPECT_HAS(unique[0], "12 classes for 12 rows: about one class per row; check `label_column`");

  TinyJob t("bert_encoder");
  put_file(t.dir / "train.csv", "text,label\nw5,a\nw6,A\nw7,a\nw8,NaN\nw9,NaN\n");
  t.settings.validation_files.clear();
  std::string lines;
  open_train_job(t.settings, {[&](const std::string& line) { lines += line + "\n"; }});
  EXPECT_HAS(lines, "differ only in case or spaces");
  EXPECT_HAS(lines, "becomes a class (2 rows)");
  EXPECT_HAS(lines, "only one training row each for 1 class: A");
}

TEST(TrainData, MissingFileIsAUsageError) {
  for (const bool validation : {false, true}) {
    TinyJob t;
    std::vector<std::string>& files = validation ? t.settings.validation_files : t.settings.train_files;
    files = {(t.dir / "gone.csv").string()};
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { open(t); }), "gone.csv: cannot open: No such file");
  }
}

TEST(TrainData, CountsRowsByClass) {
  TrainRows rows;
  rows.label = {1, ops::kNoLabel, 1, 0, ops::kIgnoredTarget};
  EXPECT_EQ(rows_by_class(TrainSet(std::move(rows)), 3), (std::vector<int64_t>{1, 2, 0}));
  TrainRows marks;
  marks.multi_label = {1, 1, 0, 1, -1, -1};
  EXPECT_EQ(rows_by_class(TrainSet(std::move(marks)), 2), (std::vector<int64_t>{1, 2}));
}

TEST(TrainData, NewClassifierKeepsThePooler) {
  TinyJob t;
  const TrainJob before = open(t);
  put_file(t.dir / "train.csv", "text,label\nw5,joy\nw6,anger\n");
  t.settings.ignore_mismatched_head = true;
  t.settings.validation_files.clear();
  const TrainJob job = open(t);
  EXPECT_TRUE(job.replaces_head);
  const model::SlabLayout from = slab_layout(before.shape), to = slab_layout(job.shape);
  int kept_of_head = 0;
  for (size_t k = 0; k < to.params.size(); ++k) {
    if (to.params[k].classes || to.params[k].rows == 0) continue;
    kept_of_head += to.params[k].head;
    EXPECT_TRUE(std::equal(job.master.begin() + to.offset[k],
                           job.master.begin() + to.offset[k] + to.params[k].elements(),
                           before.master.begin() + from.offset[k]))
        << to.params[k].names[0];
  }
  EXPECT_EQ(kept_of_head, 2);
  EXPECT_EQ(job.new_tensors, (std::vector<std::string>{"classifier.weight", "classifier.bias"}));
}

TEST(TokenCache, ReturnsTheStoredRows) {
  TempDir dir;
  TokenCache cache(dir / "tokens", kCacheLimit);
  cache.get("k", rows_from(7));
  EXPECT_FALSE(cache.hit());
  const TrainSet again = cache.get("k", [](TrainRows&) { ADD_FAILURE() << "made twice"; });
  EXPECT_TRUE(cache.hit());
  TrainRows rows;
  rows_from(7)(rows);
  const TrainSet want(std::move(rows));
  EXPECT_EQ(list(again.ids), list(want.ids));
  EXPECT_EQ(list(again.begin), list(want.begin));
  EXPECT_EQ(list(again.label), list(want.label));
  EXPECT_EQ(list(again.multi_label), list(want.multi_label));
  EXPECT_EQ(list(again.token_label), list(want.token_label));
  EXPECT_EQ(list(again.line), list(want.line));
  EXPECT_EQ(list(again.file), list(want.file));
  EXPECT_EQ(again.truncated, 1);
}

TEST(TokenCache, IsMappedAndOutlivesItsFile) {
  TempDir dir;
  TokenCache cache(dir / "tokens", kCacheLimit);
  const TrainSet made = cache.get("k", rows_from(7)), again = cache.get("k", rows_from(8));
  for (const TrainSet* set : {&made, &again}) {
    ASSERT_TRUE(set->mapped);
    EXPECT_FALSE(set->memory);
    for (const void* data : {static_cast<const void*>(set->ids.data()), static_cast<const void*>(set->line.data())})
      EXPECT_TRUE(data >= set->mapped->data() && data < set->mapped->data() + set->mapped->size());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(set->begin.data()) % alignof(int64_t), 0u);
  }
  std::filesystem::remove(cache.path("k"));  // evicted by another run
  const TrainSet held = again.in_memory();
  EXPECT_FALSE(held.mapped);
  EXPECT_EQ(held.bytes(), again.bytes());
  EXPECT_EQ(list(held.ids), list(again.ids));
  EXPECT_EQ(list(held.begin), list(again.begin));
  EXPECT_EQ(held.truncated, 1);
}

// Rows of 1,001 tokens, numbered consecutively: more than fit in memory at once.
constexpr int64_t kManyRows = 9000, kManyTokens = 1001;
auto many_rows(size_t* most, int* times) {
  return [most, times](TrainRows& rows) {
    ++*times;
    for (int64_t r = 0; r < kManyRows; ++r) {
      for (int64_t i = 0; i < kManyTokens; ++i) rows.ids.push_back(static_cast<int32_t>(r * kManyTokens + i));
      rows.end_row();
      rows.label.push_back(static_cast<int32_t>(r % 3));
      rows.file.push_back(0);
      rows.line.push_back(static_cast<int32_t>(r));
      *most = std::max(*most, rows.ids.size());
    }
  };
}

TEST(TokenCache, StreamsTokensToDisk) {
  TempDir dir;
  TokenCache cache(dir / "tokens", int64_t{1} << 30);
  size_t most = 0;
  int times = 0;
  const TrainSet made = cache.get("k", many_rows(&most, &times)), again = cache.get("k", rows_from(1));
  EXPECT_EQ(times, 1);
  EXPECT_LT(most, static_cast<size_t>(kManyRows * kManyTokens / 2));
  EXPECT_TRUE(cache.hit());
  for (const TrainSet* set : {&made, &again}) {
    ASSERT_EQ(set->rows(), kManyRows);
    ASSERT_EQ(set->tokens(), kManyRows * kManyTokens);
    bool same = true;
    for (int64_t t = 0; t < set->tokens(); ++t) same = same && set->ids[static_cast<size_t>(t)] == t;
    EXPECT_TRUE(same);
    EXPECT_EQ(set->begin[5000], 5000 * kManyTokens);
    EXPECT_EQ(set->label[5000], 2);
  }
}

TEST(TokenCache, FallsBackToMemoryIfTheDiskIsFull) {
  TempDir dir;
  TokenCache cache(dir / "tokens", int64_t{24} << 20);  // two thirds of the set
  size_t most = 0;
  int times = 0;
  std::string warning;
  const LogSink sink = set_log_sink([&](LogLevel, std::string_view text) { warning += text; });
  const TrainSet set = cache.get("k", many_rows(&most, &times));
  set_log_sink(sink);
  EXPECT_HAS(warning, "cannot cache tokens: exceeds 24");
  EXPECT_EQ(times, 2);
  EXPECT_FALSE(set.mapped);
  EXPECT_EQ(set.ids.back(), kManyRows * kManyTokens - 1);
  EXPECT_FALSE(std::filesystem::exists(cache.path("k")));
  EXPECT_TRUE(std::filesystem::is_empty(dir / "tokens"));
}

TEST(TokenCache, RebuildsDamagedFiles) {
  TempDir dir;
  TokenCache cache(dir / "tokens", kCacheLimit);
  cache.get("k", rows_from(7));
  const std::string whole = get_file(cache.path("k"));
  for (size_t at = 0; at < whole.size(); at += 5) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    put_file(cache.path("k"), bytes);
    EXPECT_EQ(cache.get("k", rows_from(8)).ids[0], 8) << "byte " << at;
    EXPECT_FALSE(cache.hit());
  }
  for (const size_t keep : {size_t{0}, size_t{7}, size_t{23}, whole.size() - 1}) {
    put_file(cache.path("k"), whole.substr(0, keep));
    EXPECT_EQ(cache.get("k", rows_from(9)).ids[0], 9) << "cut to " << keep;
  }
}

TEST(TokenCache, EvictsTheOldest) {
  TempDir dir;
  TokenCache probe(dir / "tokens", kCacheLimit);
  probe.get("size", rows_from(1));
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(probe.path("size")));
  std::filesystem::remove(probe.path("size"));
  TokenCache cache(dir / "tokens", 2 * bytes);
  const auto age = [&](const char* key, int hours) {
    std::filesystem::last_write_time(cache.path(key),
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  cache.get("a", rows_from(1));
  cache.get("b", rows_from(2));
  age("a", 3);
  age("b", 2);
  cache.get("a", rows_from(1));  // used again: now b is the oldest
  cache.get("c", rows_from(3));
  EXPECT_TRUE(std::filesystem::exists(cache.path("a")));
  EXPECT_FALSE(std::filesystem::exists(cache.path("b")));
  EXPECT_TRUE(std::filesystem::exists(cache.path("c")));
  TokenCache tiny(dir / "tokens2", 8);
  const TrainSet too_large = tiny.get("a", rows_from(4));
  EXPECT_EQ(too_large.ids[0], 4);
  EXPECT_FALSE(too_large.mapped);
  EXPECT_FALSE(std::filesystem::exists(tiny.path("a")));
}

TEST(TokenCache, KeyDependsOnDataTokenizerAndSettings) {
  TinyJob t;
  const LabelSets labels{{"a", "b"}, {}};
  std::set<std::string> keys;
  const auto key = [&](int64_t longest = 40) {
    return token_cache_key(t.settings.train_files, "", t.settings, TrainTask::sequence, labels, t.settings.model,
                           longest);
  };
  keys.insert(key());
  EXPECT_EQ(key(), *keys.begin());
  EXPECT_TRUE(keys.insert(key(39)).second);
  put_file(t.dir / "model/vocab.txt", get_file(t.dir / "model/vocab.txt") + "new\n");
  EXPECT_TRUE(keys.insert(key()).second);
  put_file(t.dir / "train.csv", get_file(t.dir / "train.csv") + "w5,neutral\n");
  EXPECT_TRUE(keys.insert(key()).second);
  t.settings.text_column = "text";
  EXPECT_TRUE(keys.insert(key()).second);
  put_file(t.dir / "model/config.json", get_file(t.dir / "model/config.json") + "\n");  // does not affect tokens
  EXPECT_FALSE(keys.insert(key()).second);
}

TEST(TokenCache, SecondRunUsesIt) {
  TinyJob t;
  EXPECT_FALSE(open(t).tokens_cached);
  const TrainJob again = open(t);
  EXPECT_TRUE(again.tokens_cached);
  EXPECT_EQ(again.train_set.rows(), 48);
}

TEST(TrainData, EncodesPairsAsOneSequenceWithTwoTypes) {
  TinyJob t("bert_pair");
  put_file(t.dir / "train.csv", "text,other,label\nw5 w6,w7,negative\nw8,,neutral\nw9,w10 w11,positive\n");
  put_file(t.dir / "val.csv", "text,other,label\nw5,w6,negative\n");
  t.settings.pair_column = "other";
  for (const bool cached : {false, true}) {
    const TrainJob job = open(t);
    EXPECT_EQ(job.tokens_cached, cached);
    EXPECT_EQ(std::vector<int32_t>(job.train_set.ids.begin(), job.train_set.ids.begin() + 6),
              (std::vector<int32_t>{2, 5, 6, 3, typed(7, 1), typed(3, 1)}));
  }
  t.settings.pair_column.clear();
  EXPECT_FALSE(open(t).tokens_cached);  // different tokens
  t.settings.pair_column = "other";
  t.settings.model = (t.dir / "plain").string();
  model::put_golden_model(t.dir / "plain", "roberta_sequence");
  EXPECT_THROW(open(t), Error);  // token type 1 with a single type
}

}  // namespace
}  // namespace brim::train
