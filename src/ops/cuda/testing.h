// SPDX-License-Identifier: Apache-2.0
// Helpers for CUDA op tests: device tensors between guard bytes that every read-back checks, packed batches, and the
// rounding errors of each type. The same tests run on a GPU and on the emulator with different sizes.
#pragma once
#include <algorithm>
#include <numeric>

#include "device/cuda/testing.h"
#include "device/cuda_info.h"
#include "memory/ledger.h"
#include "ops/batch_view.h"
#include "ops/testing.h"

namespace brim::ops::testing {

inline double eps_of(tensor::DType t) {
  return t == tensor::DType::bf16     ? kEpsBf16
         : t == tensor::DType::f16    ? kEpsF16
         : t == tensor::DType::f8e4m3 ? 0x1p-4
                                      : kEps32;
}
inline double smallest_of(tensor::DType t) {
  return t == tensor::DType::f16 ? 0x1p-25 : t == tensor::DType::f8e4m3 ? 0x1p-10 : 0x1p-140;
}  // half the smallest step
inline double fp8_value(uint8_t bits) {
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return std::nan("");
  return sign * (exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
}

// Element types of activations.
constexpr tensor::DType kActivationTypes[] = {tensor::DType::f32, tensor::DType::f16, tensor::DType::bf16};

class Gpu {
 public:
  static device::Device& device() {
    static const auto opened = device::open_cuda_device(0);
    return *opened;
  }
  static device::Stream& stream() {
    static const auto made = device().make_stream();
    return *made;
  }
  static bool emulated() { return cuda_info(device()).name == "emulated"; }
};

// Device counterpart of a HostTensor, created with its contents (poison for outputs).
class DeviceTensor {
 public:
  DeviceTensor() = default;
  explicit DeviceTensor(const HostTensor& host) : view_(host.view()), bytes_(span(host.view())) {
    buffer_ = memory::Ledger::allocate(Gpu::device(), nullptr, memory::Tag::workspace, "test",
                                       static_cast<int64_t>(bytes_ + 2 * kGuard));
    std::vector<char> all(bytes_ + 2 * kGuard, kMark);
    if (bytes_ > 0) std::memcpy(all.data() + kGuard, host.view().data, bytes_);
    Gpu::stream().copy(buffer_.data(), all.data(), all.size());
    Gpu::stream().synchronize();
    view_.data = static_cast<char*>(buffer_.data()) + kGuard;
  }
  DeviceTensor(tensor::DType dtype, std::initializer_list<int64_t> dims, int64_t pad = 0)
      : DeviceTensor(HostTensor(dtype, dims, pad)) {}

  const tensor::TensorView& view() const { return view_; }
  operator const tensor::TensorView&() const { return view_; }  // NOLINT: implicit on purpose

  HostTensor host() const {
    HostTensor t = like();
    std::vector<char> all(bytes_ + 2 * kGuard);
    Gpu::stream().copy(all.data(), buffer_.data(), all.size());
    Gpu::stream().synchronize();
    for (size_t i = 0; i < kGuard; ++i)
      if (all[i] != kMark || all[all.size() - 1 - i] != kMark) {
        ADD_FAILURE() << "bytes outside " << view_.shape_text() << " were written";
        break;
      }
    if (bytes_ > 0) std::memcpy(t.view().data, all.data() + kGuard, bytes_);
    return t;
  }
  std::vector<double> values() const {
    const HostTensor t = host();
    if (view_.dtype != tensor::DType::f8e4m3) return t.values();
    std::vector<double> all;
    const auto* bytes = static_cast<const uint8_t*>(t.view().data);
    for (int64_t r = 0; r < t.rows(); ++r)
      for (int64_t c = 0; c < t.cols(); ++c) all.push_back(fp8_value(bytes[r * view_.ld() + c]));
    return all;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr char kMark = 0x5A;
  static size_t span(const tensor::TensorView& v) {
    return static_cast<size_t>((v.rank == 2 ? v.dim[0] * v.stride[0] : v.elements()) * dtype_bytes(v.dtype));
  }
  HostTensor like() const {
    if (view_.rank == 1) return HostTensor(view_.dtype, {view_.dim[0]});
    return HostTensor(view_.dtype, {view_.dim[0], view_.dim[1]}, view_.stride[0] - view_.dim[1]);
  }
  tensor::TensorView view_;
  size_t bytes_ = 0;
  device::DeviceBuffer buffer_;
};

// Workspace for cuBLASLt, shared by all tests; small on the emulator.
inline const tensor::TensorView& gemm_scratch() {
  static const DeviceTensor scratch(bytes_tensor(Gpu::emulated() ? 1 << 20 : 32 << 20));
  return scratch.view();
}

// A packed batch on host and device, in the packer's longest-first order.
struct PackedBatch {
  std::vector<int32_t> lengths, starts, order;
  HostTensor host_starts;
  DeviceTensor device_starts, device_order;
  BatchView batch;

  explicit PackedBatch(std::vector<int32_t> all, bool with_order = true)
      : lengths(std::move(all)), starts(starts_of(lengths)) {
    order.resize(lengths.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return lengths[a] > lengths[b]; });
    host_starts = int_tensor(starts);
    device_starts = DeviceTensor(host_starts);
    batch.T = starts.back();
    batch.B = static_cast<int64_t>(lengths.size());
    batch.S = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
    batch.starts = device_starts;
    if (with_order && !order.empty()) {
      device_order = DeviceTensor(int_tensor(order));
      batch.order = device_order;
      batch.n_long = std::count_if(lengths.begin(), lengths.end(), [](int32_t n) { return n > kShortTokens; });
    }
  }
};

class CudaOps : public ::testing::Test {
 protected:
  void SetUp() override { BRIM_NEEDS_GPU(); }
};

}  // namespace brim::ops::testing
