// SPDX-License-Identifier: Apache-2.0
// Brim as a library: open a model, submit texts from any thread, or score many at once. Standard types only. The
// library prints nothing, handles no signals, sets no environment variable and starts no thread before open().
//
//   auto scorer = brim::Scorer::open({.model = "finbert"});
//   for (const auto& p : ...) scorer->submit({.text = p}).get().label;
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brim/error.h"

namespace brim {

BRIM_API const char* version();  // "0.1.0"

// The directory of what ScorerOptions::model names; empty for rules. Throws usage where there is none.
BRIM_API std::string find_model(const std::string& model);

// Prompts of an embedding model, by name, from its sentence-transformers files; default_name is empty if it has none.
struct Prompts {
  std::map<std::string, std::string> texts;
  std::string default_name;
};
BRIM_API Prompts find_prompts(const std::string& model);

// Whether a classifier and a tagger are two heads on one encoder, as training both at once gives them (OUT and
// OUT/ner).
BRIM_API bool share_encoder(const std::string& classifier, const std::string& tagger);

// What the library has to say (why a card is not used, what a model's files contradict) goes to `sink`, line by line,
// from any thread and under no lock; without one it is dropped.
BRIM_API void set_log(std::function<void(bool is_warning, std::string_view line)> sink);

// What happens to a text longer than the model takes.
enum class LongText : uint8_t { truncate, window_mean, window_max, error };

// Which of a word's tokens decide its tag: the first, the surest, or their mean; simple: each token is taken by itself;
// none: and stays by itself, an entity of its own with its whole tag.
enum class Aggregation : uint8_t { first, simple, average, max, none };

// How a text's token vectors become one vector; none: they stay what they are, special tokens' included.
// automatic: as the model's sentence-transformers files say, mean without them.
enum class Pooling : uint8_t { mean, cls, none, automatic };

struct ScorerOptions {
  std::string model;                  // a directory, a model's name, or vader; empty: the default model
  std::string device = "auto";        // auto, cpu, cuda or cuda:1
  std::string precision = "auto";     // auto, fp32, tf32, bf16, fp16, fp8 or int8
  std::string memory_limit = "auto";  // what the process may hold on the device: 6GiB, 90%
  std::string leave_free = {};        // with "auto": so much of what is free at the start is left to others: 8GiB
  int threads = 0;                    // of the CPU; 0: all cores
  int64_t max_length = 0;             // of a text in tokens; 0: the model's own
  LongText long_text = LongText::truncate;
  // Set: embeddings instead of the head's output. Length, case, default prompt, normalization and dimensions are those
  // of the directory's sentence-transformers files, if any.
  std::optional<Pooling> pooling = {};
  bool normalize = false;           // embeddings of length 1; not with Pooling::none
  double queue_seconds = 30;        // a submitted text that would wait longer, by prediction, is refused as busy
  int64_t queue_bytes = 256 << 20;  // and one that would make all that wait hold more than this
  // Above 0: texts will be submitted while score() runs, so no batch of it takes longer, by prediction, and what the
  // first of them needs is made when the model is opened. Not below what is quick: on a CPU 1,024 tokens.
  double bulk_seconds = 0;
  int64_t batch_tokens = 0;                      // most of a batch of submitted texts, but a text's; 0: by speed alone
  bool raw_scores = false;                       // requests may ask for scores before softmax or sigmoid
  Aggregation aggregation = Aggregation::first;  // of taggers
  // Other names for the model's labels, {"LABEL_0", "negative"}; those that are not here keep theirs. Not of rules.
  std::map<std::string, std::string> labels = {};
  // A tagger that shares this classifier's encoder (see share_encoder): requests may ask for its entities too.
  std::string tagger = {};
  // A text's scores do not depend on the texts beside it, to the last bit, on one device with the same libraries. On a
  // CPU they never do; on a card single texts take longer. Of scorers opened together: the first one's.
  bool deterministic = false;
  // Of scorers opened together, the first one's: they need not all fit at once, the longest idle go from the device and
  // come back with their next text; and host memory for weights that are to come back fast to a card.
  bool in_turn = false;
  int64_t parked_bytes = 0;
};

struct Entity {
  std::string group, word;
  float score = 0;
  int32_t start = 0, end = 0;  // code points of the text
  int32_t token = -1;          // Aggregation::none: its place among the text's tokens, special ones counted
};

// A submitted text's time, in seconds.
struct Timing {
  double waited = 0;    // from submit() to the batch it went into
  double computed = 0;  // from there to its result
};

// One text's result. What the model does not give is empty.
struct Prediction {
  std::string label;
  float score = 0;            // of that label
  std::vector<float> scores;  // as Scorer::score_names() names them
  std::vector<Entity> entities;
  std::vector<float> embedding;
  int32_t vectors = 0;     // in `embedding`, one behind the other: 1, or with Pooling::none one for each token read
  bool truncated = false;  // its end, or with keep_end its beginning, was not read
  int32_t tokens = 0;      // of the whole text, special ones included; 0 for rules
  Timing timing;
  std::optional<Error> error;  // set: there is no result
};

// Results of many texts, by columns; row i belongs to text i.
struct Predictions {
  size_t rows = 0, width = 0;
  std::vector<int32_t> labels;                   // places in Scorer::labels(); -1: none
  std::vector<float> scores;                     // [rows,width]: a column per score_names(), or the embeddings
  std::vector<float> label_scores;               // the label's own
  std::vector<std::vector<Entity>> entities;     // of taggers, else empty
  std::vector<uint8_t> truncated;                // 0 or 1
  std::vector<std::pair<size_t, Error>> errors;  // texts without a result, by row
  int64_t tokens = 0;                            // read for them all, special ones included; 0 for rules
};

struct Request {
  std::string_view text;                                               // read before submit() returns
  uint64_t ticket = 0;                                                 // the caller's; its answer carries it
  std::optional<std::chrono::steady_clock::time_point> deadline = {};  // past it, work that has not begun is refused
  std::stop_token stop = {};                                           // withdraws what has not begun
  std::optional<LongText> long_text = {};                              // else the scorer's
  bool keep_end = false;                                               // what is truncated is the beginning
  bool raw_scores = false;  // as the head gives them; for scorers opened with raw_scores
  bool bulk = false;        // may wait for others; a tenth of the batches are its own all the same
  uint64_t client = 0;  // whose it is: where texts of several wait, they take turns by tokens, each by its deadlines
  std::optional<std::string_view> pair = {};  // the second text of a pair, as `text` is read
  // Not empty: these tokens as they are, special ones only where given, in place of `text`. Not for taggers.
  std::span<const int32_t> ids = {};
  std::optional<Aggregation> aggregation = {};  // of taggers, else the scorer's
  // How many tokens neighbouring windows of a long text share: at most half of them. Negative: none, but of taggers a
  // quarter; there each is decided by the window that holds it farther from an edge.
  int32_t overlap = -1;
  // Of a scorer that was opened with a tagger: its entities too, from the same pass. What is too long for one window is
  // labelled by its beginning, as a text that is truncated is.
  bool entities = false;
};

struct Answer {
  uint64_t ticket = 0;
  Prediction prediction;
};

// Gets the answers: those of one batch in one call, each request's exactly once. Called on the device's thread, or on
// the one that submits or closes: hand the answers on and return.
class BRIM_API Completion {
 public:
  virtual ~Completion();
  virtual void done(std::span<Answer> answers) noexcept = 0;
};

// What a scorer will hold, computed before its first batch. Bytes by purpose sum to `peak_bytes`.
struct MemoryPlan {
  int64_t limit_bytes = 0, peak_bytes = 0;
  int64_t shared_bytes = 0;  // of these, what models of one device hold once for all of them
  std::vector<std::pair<std::string, int64_t>> bytes;
  int64_t tokens_per_batch = 0, tokens_per_interactive_batch = 0;
  double tokens_per_second = 0;  // predicted
};

// What submitted texts wait for now. The rate is measured once batches were computed, before that planned.
struct ScorerLoad {
  int64_t texts = 0, tokens = 0;
  int64_t bulk_tokens = 0;       // among them, of texts that may wait
  double tokens_per_second = 0;  // 0: nothing ever waits
  double wait_seconds = 0;       // predicted, until all that waits is done
  bool lost = false;             // its device failed: nothing is computed any more
  int64_t not_finite_texts = 0;  // failed since it was opened because the model's output was NaN or infinite
  // Of the batch that its device computes now, whatever the model and whether of submitted texts or of score(): for how
  // long it does, and the seconds predicted for it. 0: there is none.
  double batch_seconds = 0, batch_predicted_seconds = 0;
};

// What one client's texts would wait for if they were submitted now: what runs, its own that wait, and of each other
// client's what goes before them by turns. Predicted.
struct ClientWait {
  int64_t own_tokens = 0;  // of it that wait already
  double begin_seconds = 0, end_seconds = 0;
};

// How often values of which size came.
struct ValueCounts {
  std::span<const double> bounds;  // rising; they stay for ever
  std::vector<int64_t> counts;     // of values up to each bound and above the one before; last, of those above all
  double sum = 0;                  // of the values
};

// What a model computed since it was opened. Models of one device take turns, so their busy seconds add up to its own.
struct ScorerWork {
  int64_t batches = 0, graph_batches = 0;  // on a card small ones are launched as one graph
  int64_t tokens = 0;
  int64_t padding_tokens = 0;   // computed beside them, where graphs are larger than their batches
  double busy_seconds = 0;      // of the device
  double flops = 0;             // of the model, for those tokens
  double flops_per_second = 0;  // of the device in products of matrices; 0: not known
  // Of each batch: its size, and its tokens as a share of those it might have had.
  ValueCounts batch_tokens, batch_sequences, batch_fill;
  // |predicted − measured| ÷ measured time, of batches of submitted texts.
  ValueCounts prediction_error;
  int64_t loads = 0;  // times its weights came to the device, and how long that took
  double load_seconds = 0;
  // Time in which the device computed nothing, by what kept it: nothing to do; texts being packed; results being handed
  // out; models coming and going. One figure for all models that take turns in one queue.
  struct Idle {
    double no_work = 0, pack = 0, collect = 0, switching = 0;
  } idle;
  uint64_t queue = 0;  // which one that is
};

struct TextToken {
  int32_t id = 0;
  std::string text;            // as the vocabulary spells it
  int32_t start = 0, end = 0;  // code points of the text
  bool special = false;        // put there by the tokenizer
};

// Where a model's weights are: on its device; in host memory, finished; in their files alone.
enum class Residence : uint8_t { resident, parked, disk };

enum class ModelKind : uint8_t { classifier, tagger, embedder, rules };

class BRIM_API Scorer {
 public:
  static std::shared_ptr<Scorer> open(const ScorerOptions& options);
  // Several models on one device under one limit, those of the first; they take turns by batches.
  static std::vector<std::shared_ptr<Scorer>> open_together(std::span<const ScorerOptions> options);
  // In the queue of `other`'s device, beside its models and under their limit; one that is like none of them gets
  // batches as large as that queue takes. By itself where it is for another device. Others leave the device for it
  // where there is no room, those idle longest first; `other_stays`: but not that one, and it throws does_not_fit.
  static std::shared_ptr<Scorer> open_beside(const Scorer& other, const ScorerOptions& options,
                                             bool other_stays = false);
  // What these hold together at this moment, by plan: what models of one device share counts once, one that is off it
  // not at all.
  static MemoryPlan plan_together(std::span<const std::shared_ptr<Scorer>> scorers);
  virtual ~Scorer();  // closes; not from within Completion::done

  virtual ModelKind kind() const = 0;
  virtual std::optional<Pooling> pooling() const;  // of embedding models, never automatic
  virtual const std::vector<std::string>& labels() const = 0;
  virtual const std::vector<std::string>& score_names() const = 0;
  virtual std::string device() const = 0;  // "NVIDIA H200", "cpu (neon, 2 threads)"
  // Of the card that is, "0000:65:00.0"; empty: none, or not told. Numbers of cards differ from tool to tool.
  virtual std::string pci_bus_id() const;
  virtual std::string precision() const = 0;  // "bf16"; "exact" for rules
  virtual MemoryPlan plan() const = 0;
  virtual int64_t max_length() const = 0;  // of a text in tokens; 0: any
  virtual ScorerLoad load() const = 0;
  // For `tokens` more of Request::client; `bulk` and `deadline` as there.
  virtual ClientWait wait_of(uint64_t client, int64_t tokens, bool bulk = false,
                             std::optional<std::chrono::steady_clock::time_point> deadline = {}) const;
  virtual ScorerWork work() const;                                           // nothing for rules
  virtual std::vector<TextToken> tokenize(std::string_view text) const = 0;  // of the whole text; empty for rules
  // Ids back to text. Throws usage for rules, bad_model for tokenizers that cannot.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // The device's bytes are given back between two batches, and taken again with the next text, or by load_weights().
  virtual Residence residence() const;  // resident for rules
  virtual void park();
  virtual void load_weights();  // throws what was wrong with its files, or does_not_fit
  // For want of room others leave before it: those that nobody asks for, then those that load soonest for their size
  // and are asked for least. With `keep` it never does.
  virtual void keep_loaded(bool keep);
  // Where no model of its device is resident or has work, all that is held of it goes: a card's context, a CPU's
  // threads and what is parked. The next text opens it again; one that comes while others have its memory gets
  // does_not_fit.
  virtual bool close_device();  // true: it is closed now; false for rules

  // Texts from any thread; they are tokenized before this returns and computed with whatever else waits, those of one
  // call together where the device is idle. `completion` must stay until it has answered them all.
  virtual void submit(std::span<const Request> requests, Completion& completion) = 0;
  void submit(const Request& request, Completion& completion) { submit({&request, 1}, completion); }
  std::future<Prediction> submit(const Request& request);

  // Many texts, as fast as a file: packed by their content alone, so that the same texts give the same bytes. A text
  // that cannot be scored has an error and disturbs no other. `stop` ends it early: the rest is cancelled.
  virtual Predictions score(std::span<const std::string_view> texts, std::stop_token stop = {},
                            const std::function<void(size_t rows_done)>& progress = {}) = 0;

  // The same for pairs: text i and the second text i that belongs to it. Models that take none refuse every row.
  virtual Predictions score_pairs(std::span<const std::string_view> texts, std::span<const std::string_view> pairs,
                                  std::stop_token stop = {},
                                  const std::function<void(size_t rows_done)>& progress = {});

  // score() of an embedding model with `prompt` before each text instead of the model's default one.
  virtual Predictions embed(std::span<const std::string_view> texts, std::string_view prompt, std::stop_token stop = {},
                            const std::function<void(size_t rows_done)>& progress = {});

  // Answers what has not begun as cancelled, waits for the rest. What is submitted later is cancelled.
  virtual void close() = 0;
};

}  // namespace brim
