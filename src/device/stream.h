// SPDX-License-Identifier: Apache-2.0
// A stream runs ops in order. CPU streams run them synchronously, on a pool or on the calling thread; CUDA streams
// queue them; null streams only record the tensors used by each op.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cpu/isa.h"
#include "tensor/tensor_view.h"

namespace brim {
class ThreadPool;
}  // namespace brim

namespace brim::device {

enum class DeviceKind : uint8_t { cpu, cuda, null };
const char* device_kind_name(DeviceKind kind);

class Stream {
 public:
  virtual ~Stream() = default;
  DeviceKind kind() const { return kind_; }
  virtual void synchronize() = 0;
  // Copies between host and device or within the device, ordered with the ops of the stream. Host memory must stay
  // valid until completion.
  virtual void copy(void* dst, const void* src, size_t bytes) = 0;
  virtual void fill_zero(void* dst, size_t bytes) = 0;
  // Whether a failing queued op is reported by its own name, at a cost of some microseconds per op, or only as part of
  // a small batch.
  virtual void name_ops(bool) {}

 protected:
  explicit Stream(DeviceKind kind) : kind_(kind) {}

 private:
  DeviceKind kind_;
};

class CpuStream final : public Stream {
 public:
  // Without a pool, ops run on the calling thread only (a worker of a chunked forward pass).
  CpuStream(ThreadPool* pool, Isa isa) : Stream(DeviceKind::cpu), pool_(pool), isa_(isa) {}
  ThreadPool* pool() const { return pool_; }
  Isa isa() const { return isa_; }
  void synchronize() override {}
  void copy(void* dst, const void* src, size_t bytes) override;
  void fill_zero(void* dst, size_t bytes) override;

 private:
  ThreadPool* pool_;
  Isa isa_;
};

// Receives the tensor accesses of ops on a null stream.
class UseSink {
 public:
  virtual ~UseSink() = default;
  virtual void on_use(const tensor::TensorView& view) = 0;
  virtual void on_op(const char* op, double flops, double bytes) = 0;
};

class NullStream final : public Stream {
 public:
  // `target` is the device to plan for; scratch sizes and kernel choices depend on it.
  NullStream(UseSink* sink, DeviceKind target, Isa isa)
      : Stream(DeviceKind::null), sink_(sink), target_(target), isa_(isa) {}
  UseSink* sink() const { return sink_; }
  DeviceKind target() const { return target_; }
  Isa isa() const { return isa_; }
  void synchronize() override {}
  void copy(void* dst, const void* src, size_t bytes) override;
  void fill_zero(void* dst, size_t bytes) override;

 private:
  UseSink* sink_;
  DeviceKind target_;
  Isa isa_;
};

// Device on which a stream's ops run, or for which they are planned.
inline DeviceKind target_kind(const Stream& s) {
  return s.kind() == DeviceKind::null ? static_cast<const NullStream&>(s).target() : s.kind();
}
inline Isa target_isa(const Stream& s) {
  if (s.kind() == DeviceKind::null) return static_cast<const NullStream&>(s).isa();
  if (s.kind() == DeviceKind::cpu) return static_cast<const CpuStream&>(s).isa();
  return Isa::generic;
}

}  // namespace brim::device
