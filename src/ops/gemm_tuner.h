// SPDX-License-Identifier: Apache-2.0
// GEMM algorithms chosen by measurement: once per device, library version and shape class, kept in the cache folder and
// in plans. On the CPU there is nothing to choose and every call does nothing.
#pragma once
#include <string>
#include <vector>

#include "ops/linear.h"

namespace brim::ops {

struct GemmChoice {
  std::string key;        // "n 768 k 3072 t 65536 bf16>bf16 bias": a shape class, tokens rounded up to a power of two
  std::string algorithm;  // the library's own description of it, in hexadecimal
  double us = 0;          // measured
  double default_us = 0;  // what the heuristic's first answer took
  int tried = 0;
};

// Measures and keeps the best algorithm for this call, for about `seconds` beyond the heuristic's answers. Fills x with
// random values and overwrites y; never call it while batches run. An empty key: nothing to choose here.
GemmChoice tune_linear(device::Stream& stream, const LinearArgs& args, double seconds);
std::string gemm_choice_text(const GemmChoice& choice);  // a line for people

// How far one result is from another of the same product: ‖a - b‖ / ‖a‖; infinite where either is no number or they
// differ in size.
double product_distance(const std::vector<float>& a, const std::vector<float>& b);

// While one lives, every linear() of this thread on CUDA is tuned when its shape class is met first, then run as usual.
// Gradients' products take the heuristic's answer: measured for RoBERTa-base at 65,536 tokens, 18 shapes gained nothing
// together.
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

// From now on a row's product on this stream does not depend on how many rows are beside it: one algorithm per product,
// the library's own for batches of a good size, tuned or not. On the CPU rows never depend on each other.
void fix_gemm_algorithms(device::Stream& stream);

std::vector<GemmChoice> gemm_choices(device::Stream& stream);  // in use on the stream's device, by key
void use_gemm_choices(device::Stream& stream, const std::vector<GemmChoice>& choices);  // a plan's
// What the program ships for this card, then the device's file in the cache folder. Loading gives how many fit this
// library; a file of another version is ignored.
int load_gemm_choices(device::Stream& stream);
// Loads the library of products, for a thread beside the one that opens the card; the first product waits for it.
void preload_gemm_library();
// In place of load_gemm_choices, for a run so short that the library's opening would take longest: products of half
// precision on this stream do without it.
void spare_gemm_library(device::Stream& stream);
// The stream's device is about to be closed: the library lets go of it until the next product.
void release_gemm_library(device::Stream& stream);
void save_gemm_choices(device::Stream& stream);

}  // namespace brim::ops
