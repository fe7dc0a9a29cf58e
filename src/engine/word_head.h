// SPDX-License-Identifier: Apache-2.0
// The head of a GLiNER model on a device: a sequence of ops after a batch's encoder pass, chunk by chunk, so that its
// memory does not depend on the size of batches. Only scores return to the host: for span models the best label of each
// span, for word models three scores per word and label. Does not select entities.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine/gliner_head.h"
#include "engine/word_staging.h"
#include "memory/ledger.h"
#include "model/pass.h"

namespace brim::engine {

// A head and how it runs.
struct WordHeadSpec {
  std::shared_ptr<const GlinerWeights> weights;
  hub::GlinerConfig config;
  ops::Precision precision = ops::Precision::fp32;  // arithmetic of its products
  int64_t chunk_tokens = 0;                         // at least the longest sequence
  int64_t width = 0;                                // scores per word: word_width()
};

// Scores per word. Span models: score and label for each width of a span. Word models: three per label.
int64_t word_width(const hub::GlinerConfig& config, size_t labels);

class WordHead {
 public:
  // Without a device, for plans only.
  explicit WordHead(WordHeadSpec spec, device::DeviceKind target = device::DeviceKind::cuda);
  // Allocates memory and copies the weights.
  WordHead(WordHeadSpec spec, device::Device& device, device::Stream& stream, memory::PlannedMemory* planned);

  int64_t weight_bytes() const { return weight_bytes_; }
  // Any labels, to run a batch before there are texts; null if texts have them.
  const GlinerHead::Labels* any_labels();
  int64_t scratch_bytes() const;
  // `hidden`: hidden states of the batch's tokens. `staged`: WordStaging::batch_bytes() in page-locked memory. Word w
  // in a sequence is scored in row w of its tokens in `scores`, [tokens, width] f32 on the host; other values are 0.
  // Returns before the scores have arrived; `staged` must stay valid until then.
  void run(device::Stream& stream, const tensor::TensorView& hidden, const batch::PackedBatch& batch, int32_t* staged,
           float* scores);

 private:
  struct DeviceMatrix {
    ops::LinearWeight w;
    tensor::TensorView bias;  // may be empty
  };
  struct DeviceLstm {
    DeviceMatrix input;  // both directions
    DeviceMatrix recurrent[2];
  };
  // Products of labels: span models [L,F+1] with the bias in the last column; word models [L,2D] and [L,F].
  struct LabelRows {
    tensor::TensorView first, second;
  };
  // The integers of a chunk on the device, and the lengths of its windows on the host.
  struct Ints {
    tensor::TensorView rows, starts, infos, pairs, first_words, lengths;
    const int32_t *host_lengths = nullptr, *host_pairs = nullptr;
  };
  using Fill = std::vector<std::pair<const void*, int64_t>>;

  void lay_out(char* base, std::vector<std::byte>* values);
  DeviceMatrix place(const HeadMatrix& matrix, char* base, std::vector<std::byte>* values, int64_t pad_rows = 0);
  void record();
  tensor::TensorView multiply(model::Exec& e, const tensor::TensorView& x, const DeviceMatrix& matrix,
                              ops::Activation activation = ops::Activation::none) const;
  tensor::TensorView rows(model::Exec& e, int64_t n, int64_t columns) const;
  LabelRows label_rows(model::Exec& e, const tensor::TensorView& projected, const LabelRows* to) const;
  tensor::TensorView run_lstm(model::Exec& e, const Ints& ints, tensor::TensorView words) const;
  void score_spans(model::Exec& e, const Ints& ints, const tensor::TensorView& words, const LabelRows& labels,
                   const tensor::TensorView& scores) const;
  void score_words(model::Exec& e, const Ints& ints, const tensor::TensorView& words, const LabelRows& labels,
                   const tensor::TensorView& scores) const;
  tensor::TensorView run_chunk(model::Exec& e, const tensor::TensorView& hidden, const WordChunk& chunk,
                               const Ints& ints) const;
  void prepare(device::Stream& stream, const DeviceLabels& labels);
  LabelRows kept_rows(int64_t labels) const;
  Ints ints_of(const WordChunk& chunk, int32_t* device, const int32_t* host) const;

  const WordHeadSpec spec_;
  const device::DeviceKind target_;
  const tensor::DType type_;
  const int64_t D_, F_;
  int64_t weight_bytes_ = 0;
  DeviceMatrix projection_, labels_projection_, start_[3], end_[3], label_[2], turned_;
  DeviceMatrix word_, word_label_, mix_word_, mix_label_, mix_both_, mix_out_;
  std::vector<DeviceLstm> lstm_;
  memory::Placement chunk_plan_, labels_plan_;
  WordStaging staging_;
  device::DeviceBuffer weights_, scratch_;
  std::shared_ptr<const GlinerHead::Labels> any_labels_;
  uint64_t prepared_ = 0;           // id of the labels whose products are on the device
  std::vector<std::byte> vectors_;  // vectors of these labels
};

}  // namespace brim::engine
