// SPDX-License-Identifier: Apache-2.0
// N-BEATS forward and backward over lanes, op by op, and a whole training step: windows → forward → loss → backward →
// norm → AdamW. Nothing in a step comes from the host but its launches: the step's number, its constants, the windows
// and the losses live on the device, so a step is captured once and launched again. Which tensors are asked for, and in
// which order, depends on shapes alone.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "forecast/nbeats.h"
#include "memory/allocator.h"
#include "model/pass.h"
#include "ops/adamw.h"
#include "ops/window_gather.h"

namespace brim::forecast {

using tensor::TensorView;

// Where lanes' parameters lie.
struct NbeatsViews {
  TensorView master;              // [G,elements] f32
  TensorView copy;                // [G,elements] in the products' type; empty where that is f32
  TensorView grad;                // [G,elements] f32; empty where nothing is trained
  TensorView m, v;                // [G,elements] f32; likewise
  std::vector<TensorView> basis;  // by stack: [G,rows,output] f32; empty for generic ones
  TensorView lanes;               // [G,sizeof(LaneSpec)] u8
  TensorView quantiles;           // [Q] f32
  TensorView step;                // [1] i64
  TensorView rows;                // [R,G,kAdamWRowFloats] f32: constants of R steps
  TensorView losses;              // [R,G] f32
  TensorView norms;               // [R,G] f32
  TensorView factor;              // [G] f32
  TensorView norm_scratch;        // u8[grad_norm_scratch_bytes(elements, G)]
};

// Where the series lie (ops/window_gather.h).
struct WindowSource {
  TensorView values, begin, end, first, weights, picks;
  bool every_window = false;
};

struct NbeatsOptions {
  int64_t windows = 0;     // B: of a lane's step
  int64_t parts = 1;       // micro-batches they are computed in; divides them
  bool recompute = false;  // keep a block's input alone and compute its layers again on the way back
  bool mean_of_present = false;
  bool season_scale = false;  // some lane's loss is mase
  bool components = false;    // of predictions: what each stack adds
  float max_grad_norm = 1;
};

// What window_gather made of one part.
struct NbeatsWindows {
  TensorView r, r_half, mask, y, level, scale, season_scale;
};

NbeatsWindows gather_windows(model::Exec& exec, const NbeatsShape& shape, const NbeatsViews& views,
                             const WindowSource& source, const NbeatsOptions& options, int64_t windows,
                             int64_t first_row, bool targets);

// Forecasts in scaled units [G,B,forecast()]. `after_stack` is called with what they are after each stack.
using AfterStack = std::function<void(const TensorView& f)>;
TensorView nbeats_forward(model::Exec& exec, const NbeatsShape& shape, const NbeatsLayout& layout,
                          const NbeatsViews& views, const NbeatsWindows& windows, const AfterStack& after_stack = {});

// One optimizer step of every lane. Before it, `views.step` counts the steps done; after it, one more.
void nbeats_train_step(model::Exec& exec, const NbeatsShape& shape, const NbeatsLayout& layout,
                       const NbeatsViews& views, const WindowSource& source, const NbeatsOptions& options);

// Forecasts of given windows in the series' own units, kept to the end of the pass. What each stack adds is the
// difference of its entry and the one before it; the first one's is to the level.
struct NbeatsForecast {
  TensorView y_hat;                     // [G,B,quantiles*horizon] f32
  TensorView level;                     // [G,B] f32
  std::vector<TensorView> after_stack;  // like y_hat, where components are wanted
};
NbeatsForecast nbeats_predict(model::Exec& exec, const NbeatsShape& shape, const NbeatsLayout& layout,
                              const NbeatsViews& views, const WindowSource& source, int64_t windows,
                              bool components = false);

// The same code on the null device: what a pass of G lanes would hold and do.
struct NbeatsPlan {
  memory::Placement placement;
  double flops = 0, bytes = 0;
  std::map<std::string, memory::LifetimeRecorder::OpTotal> ops;
};
enum class NbeatsTask : uint8_t { train, predict };
NbeatsPlan plan_nbeats(const NbeatsShape& shape, int64_t lanes, NbeatsTask task, const NbeatsOptions& options,
                       ops::Precision precision, device::DeviceKind target, device::Isa isa, int threads);

}  // namespace brim::forecast
