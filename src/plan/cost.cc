// SPDX-License-Identifier: Apache-2.0
#include "plan/cost.h"

#include <algorithm>

namespace brim::plan {

using ops::Precision;

namespace {

struct Efficiency {
  double gemm, attention;  // fraction of the large-product rate reached by the model's shapes with enough tokens
  double bandwidth;        // fraction of the copy bandwidth reached by row kernels
  double launch_seconds;   // between two ops
};
// CUDA: 547 to 731 of 774 TFLOP/s on the H200 at 65,536 tokens. CPU: products alone run at 74 to 86 % of peak.
constexpr Efficiency kCuda = {0.85, 0.35, 0.80, 4e-6};
constexpr Efficiency kCpu = {0.90, 0.40, 1.00, 2e-6};

// Tokens whose time is lost in addition to n; at n equal to this, half the rate is reached. A GPU needs a tile per
// multiprocessor, and their number scales with its rate. Each CPU core loses half a tile of 16 rows and waits at the
// end of a layer for the slowest core: an eighth of a share with one chunk per core, half a chunk of 256 tokens with
// many.
double lost_tokens(const DeviceProfile& d, double n) {
  if (d.kind == device::DeviceKind::cpu) return d.threads * std::min(128.0, 8 + n / (8.0 * d.threads));
  return std::max(128.0, 2048.0 * d.tflops_half / 774.0);
}

// Attention runs in half precision if the linear layers use fewer bits.
double attention_rate(const DeviceProfile& d, Precision p) {
  if (p != Precision::fp8 && p != Precision::int8) return d.rate(p);
  return std::max({d.rate(Precision::bf16), d.rate(Precision::fp16), d.rate(Precision::fp32)});
}

}  // namespace

PassCost::PassCost(const model::OpTotals& small, int64_t small_tokens, const model::OpTotals& large,
                   int64_t large_tokens, double recorded_length, double typical_length) {
  const auto n1 = static_cast<double>(small_tokens), n2 = static_cast<double>(large_tokens);
  for (const auto& [name, b] : large) {
    const auto it = small.find(name);
    const memory::LifetimeRecorder::OpTotal a = it == small.end() ? memory::LifetimeRecorder::OpTotal{} : it->second;
    Line line;
    line.calls = static_cast<double>(b.calls);
    if (small_tokens == large_tokens) {
      line.flops_token = b.flops / n2;
      line.bytes_token = b.bytes / n2;
    } else {
      line.flops_token = (b.flops - a.flops) / (n2 - n1);
      line.bytes_token = (b.bytes - a.bytes) / (n2 - n1);
      line.flops_fixed = std::max(0.0, b.flops - n2 * line.flops_token);
      line.bytes_fixed = std::max(0.0, b.bytes - n2 * line.bytes_token);
    }
    line.kind = zone_kind(name);
    if (line.kind == ZoneKind::attention) line.flops_token *= typical_length / recorded_length;
    ops_[name] = line;
  }
}

double PassCost::seconds(const DeviceProfile& d, Precision precision, int64_t tokens) const {
  const Efficiency& e = d.kind == device::DeviceKind::cpu ? kCpu : kCuda;
  const auto n = static_cast<double>(tokens);
  const double full = n / (n + lost_tokens(d, n));
  double seconds = 0;
  for (const auto& [name, op] : ops_) {
    const double flops = op.flops_fixed + n * op.flops_token, bytes = op.bytes_fixed + n * op.bytes_token;
    double compute = 0;
    if (op.kind == ZoneKind::product)
      compute = flops / (d.rate(precision) * e.gemm * full);
    else if (op.kind == ZoneKind::attention)
      compute = flops / (attention_rate(d, precision) * e.attention * full);
    seconds += std::max(compute, bytes / (d.bandwidth * e.bandwidth)) + op.calls * e.launch_seconds;
  }
  return seconds;
}

double optimizer_seconds(const DeviceProfile& d, int64_t elements, int64_t moment_bytes, int64_t copy_bytes,
                         bool moments_on_host) {
  // Master read and written, gradient read twice (norm, update) and zeroed, moments read and written, copy written.
  const double bytes =
      20.0 * static_cast<double>(elements) + 2.0 * static_cast<double>(moment_bytes) + static_cast<double>(copy_bytes);
  return std::max(bytes / d.bandwidth, moments_on_host ? static_cast<double>(moment_bytes) / d.host_bandwidth : 0);
}

}  // namespace brim::plan
