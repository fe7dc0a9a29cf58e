// SPDX-License-Identifier: Apache-2.0
// Writes a model directory in another precision. int8 stores the encoder's matrices and the word table as I8 tensors
// with one f32 scale per row (NAME_scale) and marks this in config.json; everything else stays f32.
#pragma once
#include <atomic>
#include <filesystem>

#include "ops/linear.h"

namespace brim::model {

struct ExportReport {
  int64_t tensors = 0, quantized = 0, adapted = 0, bytes = 0;
};
// `to` must not exist or be empty. fp32, fp16, bf16 or int8; int8 directories can be converted back, but stay rounded.
// `adapter`: directory of a LoRA adapter to add to the weights (hub/adapter.h); empty: none. `stop`: throws interrupted
// once it is set. On any error, `to` is left as it was.
ExportReport export_model(const std::filesystem::path& from, const std::filesystem::path& to, ops::Precision precision,
                          const std::filesystem::path& adapter = {}, const std::atomic<bool>* stop = nullptr);

// One row to int8: round to nearest, scale = largest magnitude / 127 (1 for a row of zeros).
float quantize_row(const float* row, int64_t n, int8_t* out);

}  // namespace brim::model
