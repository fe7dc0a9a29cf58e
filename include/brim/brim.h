// SPDX-License-Identifier: Apache-2.0
// Brim as a library: open a model, submit texts from any thread, or score many at once. Uses standard types only. The
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

// Directory of a model given as in ScorerOptions::model; empty for rules. Throws usage if it does not exist.
BRIM_API std::string find_model(const std::string& model);

// Prompts of an embedding model, by name, from its sentence-transformers files; default_name is empty if it has none.
struct Prompts {
  std::map<std::string, std::string> texts;
  std::string default_name;
};
BRIM_API Prompts find_prompts(const std::string& model);

// Whether a classifier and a tagger are two heads on one encoder, as written by training both at once (OUT and
// OUT/ner).
BRIM_API bool share_encoder(const std::string& classifier, const std::string& tagger);

// Sets the receiver of log lines (why a GPU is not used, contradictions in a model's files). `sink` is called from any
// thread, without a lock; without a sink, lines are dropped.
BRIM_API void set_log(std::function<void(bool is_warning, std::string_view line)> sink);

// Handling of texts longer than the model's maximum.
enum class LongText : uint8_t { truncate, window_mean, window_max, error };

// Selects the tokens that determine a word's tag: the first, the one with the highest score (max), or their mean
// (average); simple: each token on its own, merged into entities; none: each token is its own entity with its full tag.
enum class Aggregation : uint8_t { first, simple, average, max, none };

// Pooling of token vectors into one vector; none: one vector per token, including special tokens. automatic: according
// to the model's sentence-transformers files, or mean without them.
enum class Pooling : uint8_t { mean, cls, none, automatic };

struct ScorerOptions {
  std::string model;                  // directory, model name, or vader; empty: the default model
  std::string device = "auto";        // auto, cpu, cuda or cuda:1
  std::string precision = "auto";     // auto, fp32, tf32, bf16, fp16, fp8 or int8
  std::string memory_limit = "auto";  // memory the process may use on the device: 6GiB, 90%
  std::string leave_free = {};        // with "auto": memory to leave free for other processes: 8GiB
  int threads = 0;                    // CPU threads; 0: all cores
  int64_t max_length = 0;             // tokens per text; 0: the model's maximum
  LongText long_text = LongText::truncate;
  // If set: embeddings instead of the head's output. Length, case, default prompt, normalization and dimensions come
  // from the directory's sentence-transformers files, if any.
  std::optional<Pooling> pooling = {};
  bool normalize = false;           // embeddings of length 1; not with Pooling::none
  double queue_seconds = 30;        // a submitted text with a longer predicted wait is rejected as busy
  int64_t queue_bytes = 256 << 20;  // limit for the total size of waiting texts; further ones are rejected as busy
  // If positive: texts will be submitted while score() runs. Limits the predicted duration of its batches, and prepares
  // for the first submitted text in open(). Lower bound: 1,024 tokens per batch on a CPU.
  double bulk_seconds = 0;
  int64_t batch_tokens = 0;  // token limit per batch of submitted texts, except for single longer texts; 0: automatic
  bool raw_scores = false;   // requests may set Request::raw_scores
  Aggregation aggregation = Aggregation::first;  // taggers only
  // Replacements for the model's label names, {"LABEL_0", "negative"}; others keep their names. Not supported for
  // rules.
  std::map<std::string, std::string> labels = {};
  // A tagger that shares this classifier's encoder (see share_encoder): requests may ask for its entities too.
  std::string tagger = {};
  // Makes scores of a text bitwise independent of other texts in the batch, on one device with the same libraries. This
  // always holds on a CPU; on a GPU single texts take longer. For scorers opened together, the first one's value
  // applies.
  bool deterministic = false;
  // For scorers opened together, the first one's values apply. in_turn: they need not all fit at once; the longest idle
  // ones are unloaded and reloaded with their next text. parked_bytes: host memory for weights of unloaded models, for
  // fast reloads to a GPU.
  bool in_turn = false;
  int64_t parked_bytes = 0;
};

struct Entity {
  std::string group, word;
  float score = 0;
  int32_t start = 0, end = 0;  // code points of the text
  int32_t token = -1;          // Aggregation::none: index among the text's tokens, including special ones
};

// Latency of a submitted text in seconds.
struct Timing {
  double waited = 0;    // from submit() to the start of its batch
  double computed = 0;  // from there to its result
};

// Result for one text. Outputs that the model does not have are empty.
struct Prediction {
  std::string label;
  float score = 0;            // score of that label
  std::vector<float> scores;  // in the order of Scorer::score_names()
  std::vector<Entity> entities;
  std::vector<float> embedding;
  int32_t vectors = 0;     // number of vectors in `embedding`: 1, or with Pooling::none one per token read
  bool truncated = false;  // its end was cut off, or its beginning with keep_end
  int32_t tokens = 0;      // in the whole text, including special ones; 0 for rules
  Timing timing;
  std::optional<Error> error;  // if set, there is no result
};

// Results for many texts as columns; row i belongs to text i.
struct Predictions {
  size_t rows = 0, width = 0;
  std::vector<int32_t> labels;                   // indices into Scorer::labels(); -1 if none
  std::vector<float> scores;                     // [rows,width]: one column per score_names(), or the embeddings
  std::vector<float> label_scores;               // score of the chosen label
  std::vector<std::vector<Entity>> entities;     // empty except for taggers
  std::vector<uint8_t> truncated;                // 0 or 1
  std::vector<std::pair<size_t, Error>> errors;  // texts without a result, by row
  int64_t tokens = 0;                            // total tokens read, including special ones; 0 for rules
};

struct Request {
  std::string_view text;                                               // not used after submit() returns
  uint64_t ticket = 0;                                                 // chosen by the caller; returned in Answer
  std::optional<std::chrono::steady_clock::time_point> deadline = {};  // work not started by then is rejected
  std::stop_token stop = {};                                           // cancels work that is not started
  std::optional<LongText> long_text = {};                              // default: the scorer's
  bool keep_end = false;                                               // truncate at the beginning instead
  bool raw_scores = false;  // scores before softmax or sigmoid; requires ScorerOptions::raw_scores
  bool bulk = false;        // low priority; still gets a tenth of the batches
  uint64_t client = 0;  // waiting texts of several clients take turns by tokens; deadlines order texts of one client
  std::optional<std::string_view> pair = {};  // second text of a pair; same lifetime as `text`
  // If not empty: token ids used unchanged instead of `text`; no special tokens are added. Not for taggers.
  std::span<const int32_t> ids = {};
  std::optional<Aggregation> aggregation = {};  // taggers only; default: the scorer's
  // Tokens shared by neighbouring windows of a long text, at most half a window. Negative: a quarter window for
  // taggers, 0 otherwise. A tagger takes each shared token from the window in which it is farther from an edge.
  int32_t overlap = -1;
  // For scorers opened with a tagger: also return its entities, from the same pass. The label of a text longer than one
  // window comes from its beginning, as with truncation.
  bool entities = false;
};

struct Answer {
  uint64_t ticket = 0;
  Prediction prediction;
};

// Receives answers: exactly one per request, those of one batch in one call. Called on the device thread, or on the
// thread that submits or closes; must not block.
class BRIM_API Completion {
 public:
  virtual ~Completion();
  virtual void done(std::span<Answer> answers) noexcept = 0;
};

// Planned memory of a scorer, known before its first batch. Bytes by purpose sum to `peak_bytes`.
struct MemoryPlan {
  int64_t limit_bytes = 0, peak_bytes = 0;
  int64_t shared_bytes = 0;  // part of the peak that models on one device share
  std::vector<std::pair<std::string, int64_t>> bytes;
  int64_t tokens_per_batch = 0, tokens_per_interactive_batch = 0;
  double tokens_per_second = 0;  // predicted
};

// Current load of submitted texts. The rate is planned at first, and measured once batches have been computed.
struct ScorerLoad {
  int64_t texts = 0, tokens = 0;
  int64_t bulk_tokens = 0;       // part of `tokens` in bulk texts
  double tokens_per_second = 0;  // 0 if texts never wait
  double wait_seconds = 0;       // predicted time until all waiting texts are done
  bool lost = false;             // the device failed: nothing is computed any more
  int64_t not_finite_texts = 0;  // failures since open() because of NaN or infinite outputs
  // Elapsed and predicted time of the batch the device is computing, for any model, submitted or from score(). 0 if
  // none.
  double batch_seconds = 0, batch_predicted_seconds = 0;
};

// Predicted wait of one client's texts if submitted now: for running batches, its own waiting texts, and the texts of
// other clients that precede them by turns.
struct ClientWait {
  int64_t own_tokens = 0;  // its tokens already waiting
  double begin_seconds = 0, end_seconds = 0;
};

// Histogram.
struct ValueCounts {
  std::span<const double> bounds;  // ascending; static lifetime
  // Values up to each bound and above the previous one; the last counts values above all bounds.
  std::vector<int64_t> counts;
  double sum = 0;  // sum of the values
};

// Work of a model since it was opened. Models on one device take turns, so their busy seconds add up to the device's.
struct ScorerWork {
  int64_t batches = 0, graph_batches = 0;  // on a GPU, small batches run as graphs
  int64_t tokens = 0;
  int64_t padding_tokens = 0;   // computed in addition, if graphs are larger than their batches
  double busy_seconds = 0;      // device time
  double flops = 0;             // model FLOPs for those tokens
  double flops_per_second = 0;  // matrix throughput of the device; 0 if unknown
  // Per batch: its size, and its tokens as a fraction of its capacity.
  ValueCounts batch_tokens, batch_sequences, batch_fill;
  // |predicted − measured| ÷ measured time, for batches of submitted texts.
  ValueCounts prediction_error;
  int64_t loads = 0;  // number of loads to the device, and their total time
  double load_seconds = 0;
  // Idle time of the device by cause: no work, packing texts, delivering results, loading and unloading models. One
  // value for all models of a queue.
  struct Idle {
    double no_work = 0, pack = 0, collect = 0, switching = 0;
  } idle;
  uint64_t queue = 0;  // id of that queue
};

struct TextToken {
  int32_t id = 0;
  std::string text;            // spelling in the vocabulary
  int32_t start = 0, end = 0;  // code points of the text
  bool special = false;        // added by the tokenizer
};

// Location of a model's weights: on its device, in host memory ready for use, or only in files.
enum class Residence : uint8_t { resident, parked, disk };

enum class ModelKind : uint8_t { classifier, tagger, embedder, rules };

class BRIM_API Scorer {
 public:
  static std::shared_ptr<Scorer> open(const ScorerOptions& options);
  // Opens several models on one device under one limit, those of the first; they take turns by batches.
  static std::vector<std::shared_ptr<Scorer>> open_together(std::span<const ScorerOptions> options);
  // Opens a model on the device queue of `other`, under the same limit; if it is not like one of the models there, its
  // batches are as large as the queue supports. Opened separately if it requires another device. Other models are
  // unloaded if memory is short, longest idle first; with `other_stays`, `other` is not unloaded, and does_not_fit is
  // thrown instead.
  static std::shared_ptr<Scorer> open_beside(const Scorer& other, const ScorerOptions& options,
                                             bool other_stays = false);
  // Planned memory these scorers hold now: memory shared by models on one device counts once, unloaded models do not
  // count.
  static MemoryPlan plan_together(std::span<const std::shared_ptr<Scorer>> scorers);
  virtual ~Scorer();  // closes; must not run within Completion::done

  virtual ModelKind kind() const = 0;
  virtual std::optional<Pooling> pooling() const;  // embedding models only; never automatic
  virtual const std::vector<std::string>& labels() const = 0;
  virtual const std::vector<std::string>& score_names() const = 0;
  virtual std::string device() const = 0;  // "NVIDIA H200", "cpu (neon, 2 threads)"
  // PCI bus id ("0000:65:00.0"); empty if not a GPU or unknown. GPU indices differ between tools.
  virtual std::string pci_bus_id() const;
  virtual std::string precision() const = 0;  // "bf16"; "exact" for rules
  virtual MemoryPlan plan() const = 0;
  virtual int64_t max_length() const = 0;  // tokens per text; 0: unlimited
  virtual ScorerLoad load() const = 0;
  // Predicted wait for `tokens` more of Request::client; `bulk` and `deadline` as in Request.
  virtual ClientWait wait_of(uint64_t client, int64_t tokens, bool bulk = false,
                             std::optional<std::chrono::steady_clock::time_point> deadline = {}) const;
  virtual ScorerWork work() const;                                           // empty for rules
  virtual std::vector<TextToken> tokenize(std::string_view text) const = 0;  // the whole text; empty for rules
  // Converts ids to text. Throws usage for rules, bad_model for tokenizers without decoding.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // park() releases the model's device memory between two batches; the next text or load_weights() loads it again.
  virtual Residence residence() const;  // resident for rules
  virtual void park();
  virtual void load_weights();  // throws if the files are invalid, or does_not_fit
  // When memory is short, models without work are unloaded first, then those with the lowest reload cost and request
  // rate per byte. With `keep` this model is never unloaded.
  virtual void keep_loaded(bool keep);
  // Releases the device if none of its models is resident or has work: GPU context, CPU threads and parked weights. The
  // next text reopens it, and fails with does_not_fit if other processes hold the memory by then.
  virtual bool close_device();  // whether it is closed now; false for rules

  // Thread-safe. Texts are tokenized before this returns and batched with other waiting texts; if the device is idle,
  // texts of one call run together. `completion` must outlive its last answer.
  virtual void submit(std::span<const Request> requests, Completion& completion) = 0;
  void submit(const Request& request, Completion& completion) { submit({&request, 1}, completion); }
  std::future<Prediction> submit(const Request& request);

  // Scores many texts with the throughput of a file. Batches depend only on the texts, so that the same texts give the
  // same bytes. A text that cannot be scored has an error and does not affect others. `stop` ends the call early and
  // cancels the rest.
  virtual Predictions score(std::span<const std::string_view> texts, std::stop_token stop = {},
                            const std::function<void(size_t rows_done)>& progress = {}) = 0;

  // Same for pairs: text i with second text i. Models without pair support reject every row.
  virtual Predictions score_pairs(std::span<const std::string_view> texts, std::span<const std::string_view> pairs,
                                  std::stop_token stop = {},
                                  const std::function<void(size_t rows_done)>& progress = {});

  // score() for an embedding model with `prompt` before each text instead of the model's default prompt.
  virtual Predictions embed(std::span<const std::string_view> texts, std::string_view prompt, std::stop_token stop = {},
                            const std::function<void(size_t rows_done)>& progress = {});

  // Cancels texts that are not started and waits for the rest. Texts submitted later are cancelled.
  virtual void close() = 0;
};

}  // namespace brim
