// SPDX-License-Identifier: Apache-2.0
// A stream is where ops run, in order. The CPU's runs them at once, on a pool or on the calling thread alone; CUDA's
// queues them; the null one only notes which tensors each op uses.
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
  // Between host and device or within the device; ordered with the stream's ops. Host memory must stay valid until
  // done.
  virtual void copy(void* dst, const void* src, size_t bytes) = 0;
  virtual void fill_zero(void* dst, size_t bytes) = 0;
  // Whether a queued op that fails is to be told by its own name, at some microseconds each, or only as one of a small
  // batch.
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

// What an op did to a view, as told to a null stream.
class UseSink {
 public:
  virtual ~UseSink() = default;
  virtual void on_use(const tensor::TensorView& view) = 0;
  virtual void on_op(const char* op, double flops, double bytes) = 0;
};

class NullStream final : public Stream {
 public:
  // `target` is the device being planned for: scratch sizes and kernel choices differ.
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

// The device a stream's ops run on, or are planned for.
inline DeviceKind target_kind(const Stream& s) {
  return s.kind() == DeviceKind::null ? static_cast<const NullStream&>(s).target() : s.kind();
}
inline Isa target_isa(const Stream& s) {
  if (s.kind() == DeviceKind::null) return static_cast<const NullStream&>(s).isa();
  if (s.kind() == DeviceKind::cpu) return static_cast<const CpuStream&>(s).isa();
  return Isa::generic;
}

}  // namespace brim::device
