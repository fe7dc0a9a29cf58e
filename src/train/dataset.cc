// SPDX-License-Identifier: Apache-2.0
#include "train/dataset.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "base/utf8.h"
#include "io/quote_text.h"
#include "ops/loss.h"
#include "rows/conll.h"
#include "rows/labels.h"
#include "rows/metrics.h"
#include "rows/row_reader.h"
#include "text/words.h"

namespace brim::train {
namespace {

rows::RowReaderOptions reader_options(const TrainSettings& s, bool labels_optional) {
  rows::RowReaderOptions options;
  options.labels_optional = labels_optional;
  options.format = s.format == "conll" ? rows::RowFormat::automatic : rows::parse_row_format(s.format);
  options.text_column = s.text_column;
  options.pair_column = s.pair_column;
  options.label_columns = s.label_columns.empty() ? std::vector<std::string>{"label"} : s.label_columns;
  options.delimiter = s.delimiter;
  options.quotes = !s.no_quotes;
  return options;
}

constexpr size_t kBlockBytes = size_t{4} << 20;  // text tokenized at once
constexpr size_t kSpillTokens = size_t{1} << 20;

struct RowRead {
  std::string_view text;
  std::optional<std::string_view> pair;
  std::span<const std::string_view> labels;  // one per label column; empty for a row without a label
  int32_t file, line;
};

struct Skipped {
  int64_t rows = 0;
  std::string first;
};

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// Calls `fn` for each row. A bad row, or one for which `fn` throws bad_data, is an error or skipped, per on_error.
template <class Fn>
void for_each_row(const std::vector<std::string>& files, size_t first_file, bool labels_optional,
                  const TrainSettings& s, Skipped& skipped, Fn&& fn) {
  rows::RowReader reader(files, reader_options(s, labels_optional));
  rows::RowChunk chunk;
  const auto take = [&](size_t r) {
    const auto where = [&] { return fmt::format("{}:{}", reader.inputs()[chunk.input], chunk.lines[r]); };
    if (const Error* error = chunk.error(r)) {
      std::string_view problem = error->what();  // may already start with the location
      if (const std::string prefix = fmt::format("{}: line {}: ", reader.inputs()[chunk.input], chunk.lines[r]);
          problem.starts_with(prefix))
        problem.remove_prefix(prefix.size());
      throw Error(error->code(), fmt::format("{}: {}", where(), problem));
    }
    if (reader.schema().format == rows::RowFormat::txt && is_blank(chunk.texts[r])) return;
    const auto& columns = reader.schema().label_columns;
    std::span<const std::string_view> labels(chunk.labels.data() + r * columns.size(), columns.size());
    // With `multi_label`, an empty cell means "no labels", which is a valid target.
    const bool none = !(s.multi_label && columns.size() == 1) &&
                      std::all_of(labels.begin(), labels.end(), [](std::string_view label) { return label.empty(); });
    if (none && !labels_optional && !s.several_labels())
      fail(ErrorCode::bad_data, "{}: no label in column {}", where(), columns[0]);
    if (none && labels_optional) labels = {};
    if (is_blank(chunk.texts[r])) fail(ErrorCode::bad_data, "{}: empty text; remove this row", where());
    fn(RowRead{chunk.texts[r], chunk.pair(r), labels, static_cast<int32_t>(first_file + chunk.input),
               static_cast<int32_t>(chunk.lines[r])},
       where);
  };
  while (reader.next_chunk(chunk))
    for (size_t r = 0; r < chunk.size(); ++r) {
      try {
        take(r);
      } catch (const Error& e) {
        if (e.code() != ErrorCode::bad_data) throw;
        if (!s.skip_bad_rows) throw Error(e.code(), e.what(), {"set `on_error=skip` to skip it"});
        if (skipped.rows++ == 0) skipped.first = e.what();
      }
    }
}

// If labels are optional, files with and without labels may be mixed, so each file is read separately.
template <class Fn>
Skipped for_each_row(const std::vector<std::string>& files, const TrainSettings& s, const Fn& fn) {
  Skipped skipped;
  if (!takes_unlabelled(s, files)) {
    for_each_row(files, 0, false, s, skipped, fn);
    return skipped;
  }
  for (size_t f = 0; f < files.size(); ++f) for_each_row({files[f]}, f, true, s, skipped, fn);
  return skipped;
}

bool all_numbers(const std::set<std::string>& names) {
  return std::all_of(names.begin(), names.end(), [](const std::string& n) {
    return !n.empty() && n.size() < 10 && n.find_first_not_of("0123456789") == std::string::npos;
  });
}

std::vector<std::string> in_order(const std::set<std::string>& names) {
  std::vector<std::string> out(names.begin(), names.end());
  if (all_numbers(names))
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return std::stol(a) < std::stol(b); });
  return out;
}

// Class indices by name; there may be thousands.
class Classes {
 public:
  explicit Classes(const std::vector<std::string>& labels, bool loosely = false) : labels_(labels), loosely_(loosely) {
    for (size_t i = 0; i < labels.size(); ++i) by_name_.emplace(labels[i], static_cast<int32_t>(i));
  }
  template <class Where>
  int32_t of(std::string_view name, const char* what, Where&& where) const {
    if (const auto it = by_name_.find(name); it != by_name_.end()) return it->second;
    if (loosely_)
      if (const auto found = rows::find_label(labels_, name)) return *found;
    fail(ErrorCode::bad_data, "{}: unknown {} '{}'; known: {}", where(), what, name, some_of(labels_));
  }

 private:
  const std::vector<std::string>& labels_;
  bool loosely_;
  std::map<std::string, int32_t, std::less<>> by_name_;
};

void append_truncated(TrainRows& set, std::vector<int32_t>& ids, std::vector<int32_t>* tags, size_t suffix,
                      int64_t max_length) {
  if (static_cast<int64_t>(ids.size()) > max_length) {
    const auto keep = static_cast<std::ptrdiff_t>(max_length) - static_cast<std::ptrdiff_t>(suffix);
    ids.erase(ids.begin() + keep, ids.end() - static_cast<std::ptrdiff_t>(suffix));
    if (tags != nullptr) tags->erase(tags->begin() + keep, tags->end() - static_cast<std::ptrdiff_t>(suffix));
    ++set.truncated;
  }
  set.ids.insert(set.ids.end(), ids.begin(), ids.end());
  set.end_row();
}

void add_sequences(TrainRows& set, const std::vector<std::string>& files, const TrainSettings& s, const LabelSets& sets,
                   const text::Tokenizer& tokenizer, int64_t max_length, ThreadPool& pool) {
  const std::vector<std::string>& labels = sets.sequence;
  std::vector<std::string> texts, pairs;  // second texts: one per text, or none
  size_t text_bytes = 0;
  const auto tokenize = [&] {
    std::vector<std::vector<int32_t>> encoded(texts.size());
    std::vector<uint8_t> cut(pairs.size());
    pool.parallel_for(texts.size(), [&](size_t i, int) {
      if (!pairs.empty()) {
        cut[i] = tokenizer.encode_pair(texts[i], pairs[i], max_length, false, encoded[i]) > max_length ? 1 : 0;
        return;
      }
      tokenizer.encode_ids(texts[i], encoded[i]);
      if (encoded[i].empty()) encoded[i].push_back(std::max(0, tokenizer.unk_id()));
    });
    for (auto& ids : encoded) append_truncated(set, ids, nullptr, tokenizer.suffix().size(), max_length);
    set.truncated += std::count(cut.begin(), cut.end(), 1);
    texts.clear();
    pairs.clear();
    text_bytes = 0;
  };
  const Classes classes(labels, sets.loosely);
  std::vector<float> marks;
  const Skipped skipped = for_each_row(files, s, [&](const RowRead& row, const auto& where) {
    int32_t label = 0;
    if (row.labels.empty()) {
      label = ops::kNoLabel;
      marks.assign(labels.size(), -1.0f);
    } else if (s.numbers()) {
      marks = {static_cast<float>(rows::read_number(row.labels[0], where()))};
      if (!std::isfinite(marks[0]))
        fail(ErrorCode::bad_data, "{}: the label {} exceeds the range of 32-bit floats", where(),
             io::quote_text(row.labels[0]));
    } else if (s.several_labels()) {
      marks.assign(labels.size(), 0.0f);
      const auto& columns = s.label_columns;
      if (columns.size() > 1)
        for (size_t c = 0; c < columns.size(); ++c)
          marks[static_cast<size_t>(classes.of(columns[c], "label", where))] =
              rows::read_mark(row.labels[c], where(), columns[c]);
      else
        for (const auto& name : rows::split_names(row.labels[0], '|'))
          marks[static_cast<size_t>(classes.of(name, "label", where))] = 1;
    } else {
      label = classes.of(row.labels[0], "label", where);
    }
    // Nothing below throws, so the row is counted.
    if (s.several_labels() || s.numbers()) set.multi_label.insert(set.multi_label.end(), marks.begin(), marks.end());
    set.label.push_back(label);
    texts.emplace_back(row.text);
    if (row.pair) pairs.emplace_back(*row.pair);
    text_bytes += row.text.size() + row.pair.value_or("").size();
    set.file.push_back(row.file);
    set.line.push_back(row.line);
    if (text_bytes >= kBlockBytes) tokenize();
  });
  set.skipped += skipped.rows;
  if (set.first_skipped.empty()) set.first_skipped = skipped.first;
  tokenize();
}

// A sentence's words joined by spaces and encoded; the first sub-word of each word gets the word's tag.
struct EncodedSentence {
  std::vector<int32_t> ids, tags;
};

EncodedSentence encode_sentence(const rows::TaggedWords& sentence, const Classes& classes,
                                const text::Tokenizer& tokenizer, const std::string& file) {
  const auto tags = rows::iob_to_bio(sentence.tags);
  const text::JoinedWords joined = text::join_words(sentence.words);
  text::Encoding e = tokenizer.encode(joined.text);
  if (e.offsets.empty())
    fail(ErrorCode::bad_model, "this tokenizer ({}) has no offsets, which token classification requires",
         tokenizer.kind());
  EncodedSentence out{std::move(e.ids), std::vector<int32_t>(e.offsets.size(), ops::kIgnoredTarget)};
  const std::vector<size_t> tokens = first_tokens(e, joined.words);
  for (size_t w = 0; w < tags.size(); ++w) {
    const int32_t k = classes.of(tags[w], "tag", [&] { return fmt::format("{}:{}", file, sentence.line_of(w)); });
    if (tokens[w] != text::kNoToken) out.tags[tokens[w]] = k;
  }
  return out;
}

void add_tokens(TrainRows& set, const std::vector<std::string>& files, const std::string& format,
                const std::vector<std::string>& labels, const text::Tokenizer& tokenizer, int64_t max_length,
                ThreadPool& pool, int32_t first_file) {
  const Classes classes(labels);
  set.token_label.resize(static_cast<size_t>(set.tokens()), ops::kIgnoredTarget);  // rows of the sequence task
  for (size_t f = 0; f < files.size(); ++f) {
    const auto sentences = rows::read_tagged(files[f], format, labels);
    std::vector<EncodedSentence> encoded(sentences.size());
    pool.parallel_for(sentences.size(),
                      [&](size_t i, int) { encoded[i] = encode_sentence(sentences[i], classes, tokenizer, files[f]); });
    for (size_t i = 0; i < sentences.size(); ++i) {
      append_truncated(set, encoded[i].ids, &encoded[i].tags, tokenizer.suffix().size(), max_length);
      set.token_label.insert(set.token_label.end(), encoded[i].tags.begin(), encoded[i].tags.end());
      set.label.push_back(ops::kIgnoredTarget);
      set.file.push_back(first_file + static_cast<int32_t>(f));
      set.line.push_back(static_cast<int32_t>(sentences[i].line));
    }
  }
}

constexpr int64_t kManyClasses = 10;

std::string classes_text(int64_t n) { return n == 1 ? "1 class" : format_count(n) + " classes"; }

// In lower case (ASCII), without surrounding spaces and with single spaces inside.
std::string folded(std::string_view label) {
  std::string out;
  for (const char c : label) {
    if (c != ' ' && c != '\t') {
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  if (out.ends_with(' ')) out.pop_back();
  return out;
}

// Text that spreadsheets and data frames write for a missing value. "none" is left out: it is a common class.
bool is_placeholder(std::string_view folded_label) {
  for (const std::string_view text : {"nan", "null", "n/a", "#n/a", "<na>", "nat", ""})
    if (folded_label == text) return true;
  return false;
}

}  // namespace

std::string some_of(const std::vector<std::string>& labels) {
  constexpr size_t kShown = 12;
  const std::span some(labels.data(), std::min(kShown, labels.size()));
  return fmt::format("{}{}", fmt::join(some, ", "),
                     labels.size() > kShown ? fmt::format(", … ({} in total)", labels.size()) : "");
}

void TrainRows::end_row() {
  begin.push_back(tokens());
  if (!spill || ids.size() < kSpillTokens) return;
  spill(ids);
  spilled = tokens();
  ids.clear();
}

TrainSet::TrainSet(TrainRows rows)
    : truncated(rows.truncated), skipped(rows.skipped), first_skipped(rows.first_skipped) {
  BRIM_CHECK(rows.spilled == 0, "{} tokens are no longer in memory", rows.spilled);
  memory = std::make_shared<const TrainRows>(std::move(rows));
  each_array([](auto& view, const auto& values) { view = values; }, *this, *memory);
}

TrainSet TrainSet::in_memory() const {
  if (!mapped) return *this;
  TrainRows rows;
  rows.truncated = truncated;
  rows.skipped = skipped;
  rows.first_skipped = first_skipped;
  each_array([](auto& values, const auto& view) { values.assign(view.begin(), view.end()); }, rows, *this);
  return TrainSet(std::move(rows));
}

int64_t TrainSet::bytes() const {
  size_t sum = 0;
  each_array([&](const auto& view) { sum += view.size_bytes(); }, *this);
  return static_cast<int64_t>(sum);
}

int64_t TrainSet::unlabelled() const { return std::count(label.begin(), label.end(), ops::kNoLabel); }

bool takes_unlabelled(const TrainSettings& s, const std::vector<std::string>& files) {
  return !s.teachers.empty() && files == s.train_files;
}

LabelSets labels_of(const TrainSettings& s, TrainTask task, const std::vector<std::string>& model_tags) {
  LabelSets sets;
  if (s.numbers()) return sets;
  if (task != TrainTask::token && s.label_columns.size() > 1) {
    sets.sequence = s.label_columns;  // keep the user's order
    for (const auto& column : s.label_columns)
      if (!is_valid_utf8(column)) fail(ErrorCode::usage, "label_column {}: not UTF-8", io::quote_text(column));
  } else if (task != TrainTask::token) {
    std::set<std::string> names;
    for_each_row(s.train_files, s, [&](const RowRead& row, const auto&) {
      if (row.labels.empty()) return;
      if (s.several_labels()) {
        for (auto& name : rows::split_names(row.labels[0], '|')) names.insert(std::move(name));
      } else {
        names.emplace(row.labels[0]);
      }
    });
    sets.sequence = in_order(names);
  }
  if (task != TrainTask::sequence) {
    std::set<std::string> names;
    bool read = false;
    const bool multi = task == TrainTask::multi;  // the tags have their own file and format
    const auto files = multi ? std::vector<std::string>{s.token_train_file} : s.train_files;
    for (const auto& file : files)
      for (const auto& sentence : rows::read_tagged(file, multi ? "auto" : s.format, model_tags)) {
        read = true;
        for (const auto& tag : rows::iob_to_bio(sentence.tags))
          if (tag != "O") names.insert(tag);
      }
    if (read) sets.token = {"O"};
    sets.token.insert(sets.token.end(), names.begin(), names.end());
  }
  return sets;
}

void collect_rows(TrainRows& rows, const std::vector<std::string>& files, const std::string& token_file,
                  const TrainSettings& s, TrainTask task, const LabelSets& labels, const text::Tokenizer& tokenizer,
                  int64_t max_length, ThreadPool& pool) {
  if (task != TrainTask::token) add_sequences(rows, files, s, labels, tokenizer, max_length, pool);
  if (task == TrainTask::token) add_tokens(rows, files, s.format, labels.token, tokenizer, max_length, pool, 0);
  if (task == TrainTask::multi)
    add_tokens(rows, {token_file}, "auto", labels.token, tokenizer, max_length, pool,
               static_cast<int32_t>(files.size()));
}

void read_texts(const TrainSet& set, const TrainSettings& s, int64_t rows,
                const std::function<void(int64_t, std::string_view, const std::optional<std::string_view>&)>& take) {
  int64_t row = 0;
  for_each_row(s.train_files, s, [&](const RowRead& read, const auto&) {
    const auto at = static_cast<size_t>(row);  // rows with unknown labels were skipped
    if (row < rows && set.file[at] == read.file && set.line[at] == read.line) take(row++, read.text, read.pair);
  });
  if (row < rows)
    fail(ErrorCode::bad_data, "{}: changed while it was read",
         s.train_files[static_cast<size_t>(set.file[static_cast<size_t>(row)])]);
}

std::string note_on_labels(const std::vector<std::string>& labels) {
  bool fraction = false;
  for (const auto& label : labels) {
    char* end = nullptr;
    (void)std::strtod(label.c_str(), &end);
    if (label.empty() || end != label.c_str() + label.size()) return "";
    fraction = fraction || label.find('.') != std::string::npos;
  }
  if (!fraction) return "";
  return fmt::format(
      "the labels are fractional numbers ({}), and each of the {} becomes a class; set `task=regression` to predict "
      "numbers",
      some_of(labels), format_count(static_cast<int64_t>(labels.size())));
}

std::vector<int64_t> rows_by_class(const TrainSet& set, size_t classes) {
  std::vector<int64_t> rows(classes);
  for (size_t i = 0; i < set.multi_label.size(); ++i) rows[i % classes] += set.multi_label[i] > 0.5f;
  if (set.multi_label.empty())
    for (const int32_t label : set.label)
      if (label >= 0) ++rows[static_cast<size_t>(label)];
  return rows;
}

std::vector<std::string> notes_on_classes(const std::vector<std::string>& labels, const std::vector<int64_t>& rows) {
  std::vector<std::string> notes, single;
  std::map<std::string, std::vector<std::string>> spellings;
  int64_t total = 0, used = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (rows[i] == 0) continue;  // a class of the model without rows
    total += rows[i];
    ++used;
    const std::string plain = folded(labels[i]);
    spellings[plain].push_back(io::quote_text(labels[i]));
    if (rows[i] == 1) single.push_back(labels[i]);
    if (is_placeholder(plain))
      notes.push_back(fmt::format("label {} becomes a class ({}); remove rows without a label",
                                  io::quote_text(labels[i]), format_count(rows[i], "row")));
  }
  for (const auto& [plain, names] : spellings)
    if (names.size() > 1)
      notes.push_back(
          fmt::format("labels {} differ only in case or spaces and become separate classes; use one spelling",
                      fmt::join(names, ", ")));
  if (used >= kManyClasses && 2 * used > total)
    notes.push_back(fmt::format("{} for {}: about one class per row; check `label_column`", classes_text(used),
                                format_count(total, "row")));
  else if (!single.empty())
    notes.push_back(fmt::format("only one training row each for {}: {}",
                                classes_text(static_cast<int64_t>(single.size())), some_of(single)));
  return notes;
}

std::vector<std::vector<int64_t>> split_micro_batches(const TrainSet& set, const std::vector<int64_t>& rows,
                                                      int64_t tokens, int64_t sequences) {
  std::vector<int64_t> sorted = rows;
  std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) { return set.length(a) > set.length(b); });
  int64_t total = 0;
  for (const int64_t r : rows) total += set.length(r);
  // Use as few as the budget allows and fill them evenly.
  const int64_t count =
      std::max<int64_t>({1, (total + tokens - 1) / tokens, (static_cast<int64_t>(rows.size()) - 1) / sequences + 1});
  std::vector<std::vector<int64_t>> batches(static_cast<size_t>(count));
  std::vector<int64_t> filled(static_cast<size_t>(count), 0);
  for (const int64_t r : sorted) {
    size_t best = filled.size();
    for (size_t b = 0; b < filled.size(); ++b)
      if (filled[b] + set.length(r) <= tokens && static_cast<int64_t>(batches[b].size()) < sequences &&
          (best == filled.size() || filled[b] < filled[best]))
        best = b;
    if (best == filled.size()) {
      batches.emplace_back();
      filled.push_back(0);
    }
    batches[best].push_back(r);
    filled[best] += set.length(r);
  }
  return batches;
}

std::vector<int64_t> epoch_order(int64_t rows, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(epoch) + 1);
  // Explicit Fisher-Yates: std::shuffle's use of the generator is unspecified, and runs must be reproducible
  // everywhere.
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

}  // namespace brim::train
