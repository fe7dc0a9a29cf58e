// SPDX-License-Identifier: Apache-2.0
#include "plan/device_profile.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/cache_file.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "base/units.h"
#include "device/cuda_info.h"
#include "memory/ledger.h"
#include "plan/profile_file.h"

namespace brim::plan {

using device::DeviceBuffer;
using device::DeviceKind;
using device::Isa;
using ops::Precision;

int64_t DeviceProfile::rounding_bytes() const {
  return kind == DeviceKind::cpu ? 0 : std::min(kRoundingBytes, context_bytes);
}

double DeviceProfile::rate(Precision precision) const {
  switch (precision) {
    case Precision::fp32:
      return tflops_fp32 * 1e12;
    case Precision::tf32:
      return tflops_tf32 * 1e12;
    case Precision::bf16:
      return bf16 ? tflops_half * 1e12 : 0;
    case Precision::fp16:
      return kind == DeviceKind::cpu ? 0 : tflops_half * 1e12;
    case Precision::fp8:
      return tflops_fp8 * 1e12;
    case Precision::int8:
      return tops_int8 * 1e12;
  }
  return 0;
}

const char* DeviceProfile::mfu_note() const {
  return kind == DeviceKind::cuda && !measured ? " of the data sheet" : "";
}

std::string DeviceProfile::precisions() const {
  std::string names;
  for (const auto p :
       {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16, Precision::fp8, Precision::int8})
    if (rate(p) > 0) names += fmt::format("{}{}", names.empty() ? "" : ", ", precision_name(p));
  return names;
}

namespace {

std::string file_name(const std::string& device) {
  std::string name;
  for (const char c : device)
    name += std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(c)) : '-';
  return name;
}

void keep(const std::filesystem::path& path, const std::string& text) {
  if (const std::string why = write_cache_file(path, text); !why.empty())
    fail(ErrorCode::cannot_write, "{}: cannot write: {}", path.string(), why);
}

DeviceProfile local_cpu(device::Device& device) {
  const auto stream = device.make_stream();
  const ThreadPool* pool = static_cast<device::CpuStream&>(*stream).pool();
  DeviceProfile p = estimated_cpu(device::best_isa(), pool != nullptr ? pool->size() : 1, device.memory().total_bytes);
  p.name = device.name();
  // Memory besides weights, arenas and tokenizer: program and libraries (6 MiB), rows between reader and writer (at
  // most 16 MiB unless rows are long), and per-thread stack and heap.
  p.context_bytes = (int64_t{22} << 20) + p.threads * (int64_t{1} << 20);
  return p;
}

#if BRIM_WITH_CUDA
DeviceProfile local_card(device::Device& device) {
  const device::CudaInfo& info = cuda_info(device);
  DeviceProfile p;
  if (const DeviceProfile* card = find_card(device.name(), info.memory_bytes)) {
    p = *card;
  } else {  // nearest in generation, then in size
    const auto distance = [&](const DeviceProfile& c) {
      return std::pair(std::abs(c.compute_capability - info.capability), std::abs(c.total_bytes - info.memory_bytes));
    };
    p = *std::min_element(known_cards().begin(), known_cards().end(),
                          [&](const DeviceProfile& a, const DeviceProfile& b) { return distance(a) < distance(b); });
    p.context_bytes = estimated_context_bytes(info.capability);
  }
  p.name = device.name();
  p.total_bytes = device.memory().total_bytes;
  p.compute_capability = info.capability;
  p.runnable = true;
  p.bf16 = info.bf16;
  if (!info.tf32) p.tflops_tf32 = 0;
  if (!info.fp8)
    p.tflops_fp8 = 0;
  else if (p.tflops_fp8 == 0)
    p.tflops_fp8 = 2 * p.tflops_half;
  return p;
}
#endif

}  // namespace

DeviceProfile estimated_cpu(Isa isa, int threads, int64_t total_bytes) {
  struct Rates {
    double fp32, bf16, int8;  // Gop/s per thread, as reached by large products
  };
  const Rates r = [&]() -> Rates {
    switch (isa) {
      case Isa::amx:
        return {90, 700, 1400};
      case Isa::avx512:
        return {75, 110, 250};
      case Isa::avx512_vnni:
        return {75, 38, 250};
      case Isa::avx2:
        return {40, 38, 80};
      case Isa::neon_mm:
        return {65, 220, 440};
      case Isa::neon_dot:
        return {30, 28, 100};
      case Isa::neon:
        return {25, 23, 30};
      case Isa::generic:
        break;
    }
    return {3, 3, 3};
  }();
  DeviceProfile p;
  p.name = "cpu";
  p.kind = DeviceKind::cpu;
  p.isa = isa;
  p.threads = threads;
  p.total_bytes = total_bytes;
  p.tflops_fp32 = r.fp32 * threads * 1e-3;
  p.tflops_half = r.bf16 * threads * 1e-3;
  p.tops_int8 = r.int8 * threads * 1e-3;
  p.bandwidth = 12e9 * std::min(threads, 16);
  return p;
}

DeviceProfile local_profile(device::Device& device) {
  if (device.kind() == DeviceKind::cpu) {
    DeviceProfile p = local_cpu(device);
    const auto path = profile_path(p.name);
    std::error_code ec;
    if (!std::filesystem::is_regular_file(path, ec)) return p;
    try {
      const std::optional<DeviceProfile> kept = read_profile_file(read_file(path));
      if (!kept || kept->isa != p.isa || kept->threads != p.threads) return p;
      p.tflops_fp32 = kept->tflops_fp32;
      p.tflops_half = kept->tflops_half;
      p.tops_int8 = kept->tops_int8;
      p.bandwidth = kept->bandwidth;
      p.measured = true;
    } catch (const Error& e) {
      log_debug("{}: {}; using estimates", path.string(), e.what());
    }
    return p;
  }
#if BRIM_WITH_CUDA
  return local_card(device);
#else
  fail(ErrorCode::internal, "{}: profiling requires the CUDA backend", device.name());
#endif
}

std::filesystem::path profile_path(const std::string& device_name) {
  return cache_dir() / "profile" / (file_name(device_name) + ".json");
}

namespace {

DeviceBuffer allocate_block(device::Device& device, int64_t bytes) {
  return memory::Ledger::allocate(device, nullptr, memory::Tag::workspace, "measuring", bytes);
}

// Sets tflops_fp32, tflops_half and tops_int8.
void measure_products(device::Device& device, device::Stream& stream, DeviceProfile& p) {
  const int64_t T = 512 * p.threads, N = 1024, K = 1024;
  const auto block = [&](int64_t bytes) { return allocate_block(device, bytes); };
  const auto f32 = [](DeviceBuffer& b, int64_t rows, int64_t cols) {
    return tensor::TensorView(b.data(), tensor::DType::f32, {rows, cols});
  };
  DeviceBuffer x = block(T * K * 4), y = block(T * N * 4), w = block(N * K * 4);
  for (int64_t i = 0; i < T * K; ++i) static_cast<float*>(x.data())[i] = static_cast<float>(i % 17) * 0.01f;
  for (int64_t i = 0; i < N * K; ++i) static_cast<float*>(w.data())[i] = static_cast<float>(i % 13) * 0.01f;
  const auto rate = [&](Precision precision) {
    DeviceBuffer packed = block(linear_packed_bytes(N, K, precision, p.isa));
    DeviceBuffer scale = block(N * 4);
    linear_pack(f32(w, N, K), {}, precision, p.isa, packed.data(), static_cast<float*>(scale.data()));
    const int64_t scratch_bytes = linear_scratch_bytes(stream, T, N, K, precision, p.threads);
    DeviceBuffer scratch = block(scratch_bytes);
    ops::LinearArgs a;
    a.x = f32(x, T, K);
    a.y = f32(y, T, N);
    a.w.N = N;
    a.w.K = K;
    a.w.precision = precision;
    a.w.isa = p.isa;
    a.w.data = tensor::TensorView(packed.data(), tensor::DType::u8, {static_cast<int64_t>(packed.bytes())});
    if (precision == Precision::int8) a.w.scale = tensor::TensorView(scale.data(), tensor::DType::f32, {N});
    if (scratch_bytes > 0) a.scratch = tensor::TensorView(scratch.data(), tensor::DType::u8, {scratch_bytes});
    linear(stream, a);  // warm-up
    double best = 0;
    for (const auto begin = now_ns(); now_ns() - begin < 120'000'000;) {
      const auto since = now_ns();
      linear(stream, a);
      best = std::max(
          best, 2.0 * static_cast<double>(T) * N * K / static_cast<double>(std::max<int64_t>(1, now_ns() - since)));
    }
    return best * 1e-3;  // flop/ns is Gflop/s
  };
  p.tflops_fp32 = rate(Precision::fp32);
  p.tflops_half = rate(Precision::bf16);
  p.tops_int8 = rate(Precision::int8);
}

// Bytes per second, read and written, of copies by all threads.
double measure_bandwidth(device::Device& device, ThreadPool* pool, int threads) {
  const size_t each = size_t{32} << 20;
  DeviceBuffer from = allocate_block(device, static_cast<int64_t>(each) * threads),
               to = allocate_block(device, static_cast<int64_t>(each) * threads);
  const auto copy = [&](int worker) {
    std::memcpy(static_cast<char*>(to.data()) + each * static_cast<size_t>(worker),
                static_cast<char*>(from.data()) + each * static_cast<size_t>(worker), each);
  };
  std::memset(from.data(), 1, from.bytes());
  std::memset(to.data(), 1, to.bytes());
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const auto since = now_ns();
    if (pool != nullptr)
      pool->run(copy);
    else
      copy(0);
    const auto elapsed = static_cast<double>(std::max<int64_t>(1, now_ns() - since));
    best = std::max(best, 2e9 * static_cast<double>(from.bytes()) / elapsed);
  }
  return best;
}

}  // namespace

DeviceProfile measure_cpu(device::Device& device) {
  BRIM_CHECK(device.kind() == DeviceKind::cpu, "measure_cpu on a {} device", device::device_kind_name(device.kind()));
  DeviceProfile p = local_cpu(device);
  const auto stream = device.make_stream();
  measure_products(device, *stream, p);
  p.bandwidth = measure_bandwidth(device, static_cast<device::CpuStream&>(*stream).pool(), p.threads);
  p.measured = true;
  keep(profile_path(p.name), profile_file_text(p));
  return p;
}

}  // namespace brim::plan
