// SPDX-License-Identifier: Apache-2.0
// Common parts of all ops: work (for benchmarks, plans and MFU), the list of views used (for planning and debug
// checks), and dispatch from the public call to the backend's function.
#pragma once
#include "base/timeline.h"
#include "device/stream.h"
#include "tensor/tensor_view.h"

namespace brim::ops {

struct KernelTable;

struct Work {
  double flops = 0;  // multiply and add count as two
  double bytes = 0;  // minimum traffic: each input read once, each output written once
};

// Whether a gradient overwrites the existing values or is added to them.
enum class GradWrite : uint8_t { overwrite, accumulate };

// gelu is the erf form, gelu_tanh its tanh form (x σ(2 √(2/π) (x + 0.044715 x³))), quick_gelu x σ(1.702 x), silu x
// σ(x).
enum class Activation : uint8_t { none, gelu, relu, tanh, gelu_tanh, quick_gelu, silu };
// Whether the slope is computed from the output instead of the input.
constexpr bool slope_reads_output(Activation a) { return a == Activation::relu || a == Activation::tanh; }

// Backend table for a stream; throws internal if the build has none.
const KernelTable& kernels_of(const device::Stream& stream);

void note_op(device::Stream& stream, const char* name, const Work& work);  // null streams only

template <class Args>
struct OpOf;  // zone and table entry of the op with these arguments; see BRIM_OPS

// Runs one op: null streams record it, others call the table's entry inside a zone.
template <class Args>
void dispatch(device::Stream& stream, const Args& args, const Work& work) {
  if (stream.kind() == device::DeviceKind::null) {
    args.views([&](const tensor::TensorView& view) {
      if (view) static_cast<device::NullStream&>(stream).sink()->on_use(view);
    });
    note_op(stream, zone_name(OpOf<Args>::kZone), work);
    return;
  }
  ScopedZone scope(OpOf<Args>::kZone);
  OpOf<Args>::entry(kernels_of(stream))(stream, args);
}

}  // namespace brim::ops
