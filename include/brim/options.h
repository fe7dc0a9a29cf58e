// SPDX-License-Identifier: Apache-2.0
// Options of a scorer. Devices, precisions and sizes can be given as values or as text ("cuda:1", "bf16", "6GiB"); text
// that is not valid throws usage when it is converted. Uses standard types only.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brim/error.h"

namespace brim {

// Text: auto, cpu, cuda or cuda:1. automatic is a GPU if one is usable, else the CPU.
struct BRIM_API Device {
  enum class Kind : uint8_t { automatic, cpu, cuda };
  Kind kind = Kind::automatic;
  int index = 0;  // GPU index

  Device() = default;
  Device(Kind k, int i = 0) : kind(k), index(i) {}
  Device(std::string_view written);
  Device(const std::string& written) : Device(std::string_view(written)) {}
  Device(const char* written) : Device(std::string_view(written)) {}
  std::string text() const;
  bool operator==(const Device&) const = default;
};

// Text: auto or the name of a format. automatic depends on the device.
struct BRIM_API Precision {
  enum Format : uint8_t { automatic, fp32, tf32, bf16, fp16, fp8, int8 };
  Format format = automatic;

  Precision() = default;
  Precision(Format f) : format(f) {}
  Precision(std::string_view written);
  Precision(const std::string& written) : Precision(std::string_view(written)) {}
  Precision(const char* written) : Precision(std::string_view(written)) {}
  std::string text() const;
  bool operator==(const Precision&) const = default;
};

// Text: auto, a size (6GiB) or a share of the device's memory (90%). automatic: what is free at the start, except for a
// reserve.
struct BRIM_API MemoryLimit {
  int64_t bytes = 0;
  double percent = 0;         // both 0: automatic
  std::string text = "auto";  // as written, for messages

  MemoryLimit() = default;
  MemoryLimit(std::string_view written);
  MemoryLimit(const std::string& written) : MemoryLimit(std::string_view(written)) {}
  MemoryLimit(const char* written) : MemoryLimit(std::string_view(written)) {}
  static MemoryLimit of_bytes(int64_t bytes) { return MemoryLimit(std::to_string(bytes) + "B"); }
  bool operator==(const MemoryLimit& other) const { return bytes == other.bytes && percent == other.percent; }
};

// Text: a size (8GiB); empty or 0: none.
struct BRIM_API LeaveFree {
  int64_t bytes = 0;
  std::string text;  // as written, for messages

  LeaveFree() = default;
  LeaveFree(std::string_view written);
  LeaveFree(const std::string& written) : LeaveFree(std::string_view(written)) {}
  LeaveFree(const char* written) : LeaveFree(std::string_view(written)) {}
  bool operator==(const LeaveFree& other) const { return bytes == other.bytes; }
};

// Handling of texts longer than the model's maximum.
enum class LongText : uint8_t { truncate, window_mean, window_max, error };

// Selects the tokens that determine a word's tag: the first, the one with the highest score (max), or their mean
// (average); simple: each token on its own, merged into entities; none: each token is its own entity with its full tag.
enum class Aggregation : uint8_t { first, simple, average, max, none };

// Pooling of token vectors into one vector; none: one vector per token, including special tokens. automatic: according
// to the model's sentence-transformers files, or mean without them.
enum class Pooling : uint8_t { mean, cls, none, automatic };

// Zero-shot classification by an NLI model: each label is inserted into the template, and its score is computed from
// the logits for "the text entails this sentence": a softmax over the labels, or independent with multi_label.
struct ZeroShot {
  std::vector<std::string> labels;
  std::string text_template = "This example is {}.";  // contains {} exactly once
  bool multi_label = false;                           // scores of labels are independent of each other
};

// Entities that a GLiNER model finds by name. Spans whose score for a label is above `threshold` compete, the best
// first; with `nested` an entity may contain another.
struct EntityLabels {
  std::vector<std::string> labels;
  float threshold = 0.5f;
  bool nested = false;
};

struct ScorerOptions {
  std::string model;  // directory, model name, or vader; empty: the default model
  // LoRA adapter for that model in PEFT's format: directory or name; empty: none. Its head and labels replace the
  // model's.
  std::string adapter = {};
  // For scorers opened together: those with the same model and precision use one copy of its encoder, and adapters are
  // not merged into it. Adapters that change more than matrices and the head are merged into a copy of their own.
  bool share_base = false;
  Device device = {};
  Precision precision = {};
  MemoryLimit memory_limit = {};  // memory the process may use on the device
  LeaveFree leave_free = {};      // without a limit: memory to leave free for other processes
  int threads = 0;                // CPU threads; 0: all cores
  int64_t max_length = 0;         // tokens per text; 0: the model's maximum
  LongText long_text = LongText::truncate;
  // If set: embeddings instead of the head's output. Length, case, default prompt, normalization and dimensions come
  // from the directory's sentence-transformers files, if any.
  std::optional<Pooling> pooling = {};
  std::string prompt_name = {};     // name of a prompt in those files; empty: the default one
  bool normalize = false;           // embeddings of length 1; not with Pooling::none
  double queue_seconds = 30;        // a submitted text with a longer predicted wait is rejected as busy
  int64_t queue_bytes = 256 << 20;  // limit for the total size of waiting texts; further ones are rejected as busy
  // If positive: texts will be submitted while score() runs. Limits the predicted duration of its batches, and prepares
  // for the first submitted text in open(). Lower bound: 1,024 tokens per batch on a CPU.
  double bulk_seconds = 0;
  int64_t batch_tokens = 0;  // token limit per batch of submitted texts, except for single longer texts; 0: automatic
  bool raw_scores = false;   // requests may set Request::raw_scores
  bool fill = false;         // use the whole memory limit, even if it is not faster
  int64_t input_bytes = 0;   // if positive: total size of the texts; a GPU's memory is used for no more
  Aggregation aggregation = Aggregation::first;  // taggers only
  // Replacements for the model's label names, {"LABEL_0", "negative"}; others keep their names. Not supported for
  // rules.
  std::map<std::string, std::string> labels = {};
  // NLI models only: the scorer is a classifier with these labels.
  std::optional<ZeroShot> zero_shot = {};
  // GLiNER models only: the scorer is a tagger with these labels. Without them, requests must have labels.
  std::optional<EntityLabels> entities = {};
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
  // For scorers opened together, the first one's value applies to all of them: host memory for the results of earlier
  // texts, which are returned if a text is repeated with the same options; counts towards the limit on a CPU. Errors
  // are not kept. The latency of a text then tells whether it was scored before. 0: none.
  int64_t cache_bytes = 0;
};

}  // namespace brim
