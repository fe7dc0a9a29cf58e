// SPDX-License-Identifier: Apache-2.0
// Selects GEMM algorithms by measurement, once per device, library version and shape class; stored in the cache folder
// and in plans. On the CPU there is no choice and all calls do nothing.
#pragma once
#include <string>
#include <vector>

#include "ops/linear.h"

namespace brim::ops {

struct GemmChoice {
  std::string key;        // "n 768 k 3072 t 65536 bf16>bf16 bias": a shape class, tokens rounded up to a power of two
  std::string algorithm;  // opaque description from the library, in hexadecimal
  double us = 0;          // measured
  double default_us = 0;  // time of the heuristic's first result
  int tried = 0;
};

// Measures and keeps the best algorithm for this call, spending about `seconds` beyond the heuristic's results. Fills x
// with random values and overwrites y; never call it while batches run. Returns an empty key if there is no choice.
GemmChoice tune_linear(device::Stream& stream, const LinearArgs& args, double seconds);
std::string gemm_choice_text(const GemmChoice& choice);  // one line for display

// Relative distance of two results of the same product: ‖a - b‖ / ‖a‖; infinite if either has a NaN or the sizes
// differ.
double product_distance(const std::vector<float>& a, const std::vector<float>& b);

// While an object exists, every linear() of this thread on CUDA is tuned at the first use of its shape class, then run
// as usual. Gradient products use the heuristic's result: for RoBERTa-base at 65,536 tokens, tuning 18 shapes gained
// nothing in total.
class GemmTuning {
 public:
  explicit GemmTuning(double seconds_per_class);
  ~GemmTuning();
  GemmTuning(const GemmTuning&) = delete;
  GemmTuning& operator=(const GemmTuning&) = delete;
  const std::vector<GemmChoice>& done() const { return done_; }
  static void meet(device::Stream& stream, const LinearArgs& args);  // called by linear()

 private:
  double seconds_;
  std::vector<std::string> met_;
  std::vector<GemmChoice> done_;
};

// Makes the product of a row on this stream independent of the other rows: one algorithm per product, the library's
// default for reasonably large batches, tuned or not. On the CPU rows are always independent.
void fix_gemm_algorithms(device::Stream& stream);

std::vector<GemmChoice> gemm_choices(device::Stream& stream);  // those in use on the stream's device, by key
void use_gemm_choices(device::Stream& stream, const std::vector<GemmChoice>& choices);  // from a plan
// Loads the built-in choices for this GPU, then the device's cache file. Returns the number of choices valid for this
// library; a file of another version is ignored.
int load_gemm_choices(device::Stream& stream);
// Loads the GEMM library, from a thread parallel to opening the GPU; the first product waits for it.
void preload_gemm_library();
// Instead of load_gemm_choices, for runs so short that loading the library would dominate: half-precision products on
// this stream do without it.
void spare_gemm_library(device::Stream& stream);
// Call before closing the stream's device: the library releases it until the next product.
void release_gemm_library(device::Stream& stream);
void save_gemm_choices(device::Stream& stream);

}  // namespace brim::ops
