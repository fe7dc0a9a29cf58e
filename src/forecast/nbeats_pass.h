// SPDX-License-Identifier: Apache-2.0
// N-BEATS forward and backward over lanes, op by op, and a complete training step: windows → forward → loss → backward
// → norm → AdamW. A step takes nothing from the host but its launches: step number, constants, windows and losses live
// on the device, so a step is captured once and replayed. The tensors allocated, and their order, depend on shapes
// only.
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

// Views of the lanes' parameters, gradients and step tables.
struct NbeatsViews {
  TensorView master;              // [G,elements] f32
  TensorView copy;                // [G,elements] in the matmul type; empty for f32
  TensorView grad;                // [G,elements] f32; empty if not training
  TensorView m, v;                // [G,elements] f32; empty if not training
  std::vector<TensorView> basis;  // per stack: [G,rows,output] f32; empty if generic
  TensorView lanes;               // [G,sizeof(LaneSpec)] u8
  TensorView row_lanes;           // with covariates: the same lanes with a lookback of 1
  TensorView quantiles;           // [Q] f32
  TensorView step;                // [1] i64
  TensorView rows;                // [R,G,kAdamWRowFloats] f32: constants for R steps
  TensorView losses;              // [R,G] f32
  TensorView norms;               // [R,G] f32
  TensorView factor;              // [G] f32
  TensorView norm_scratch;        // u8[grad_norm_scratch_bytes(elements, G)]
};

// Device tables of the series (ops/window_gather.h).
struct WindowSource {
  TensorView values, begin, end, first, weights, picks;
  // With covariates: inputs by row [rows,inputs per point] f32; the row of each value as bits of a float [values], for
  // drawn windows; the rows of the picks [G*B] i32, for given ones.
  TensorView future, past, fixed, row_bits, rows;
  bool every_window = false;
};

struct NbeatsOptions {
  int64_t windows = 0;     // B: windows per lane and step
  int64_t parts = 1;       // micro-batches per step; divides `windows`
  bool recompute = false;  // keep only block inputs and recompute the layers in backward
  bool mean_of_present = false;
  bool season_scale = false;  // some lane uses the mase loss
  bool components = false;    // prediction only: also return the contribution of each stack
  float max_grad_norm = 1;
};

// Output of window_gather for one micro-batch.
struct NbeatsWindows {
  TensorView r, r_half, mask, y, level, scale, season_scale;
  TensorView covariates, covariates_half;  // [G,B,covariate_inputs()]
};

NbeatsWindows gather_windows(model::Exec& exec, const NbeatsShape& shape, const NbeatsViews& views,
                             const WindowSource& source, const NbeatsOptions& options, int64_t windows,
                             int64_t first_row, bool targets);

// Forecasts in scaled units [G,B,forecast()]. `after_stack` is called with the partial forecast after each stack.
using AfterStack = std::function<void(const TensorView& f)>;
TensorView nbeats_forward(model::Exec& exec, const NbeatsShape& shape, const NbeatsLayout& layout,
                          const NbeatsViews& views, const NbeatsWindows& windows, const AfterStack& after_stack = {});

// One optimizer step for every lane. `views.step` holds the number of completed steps and is incremented.
void nbeats_train_step(model::Exec& exec, const NbeatsShape& shape, const NbeatsLayout& layout,
                       const NbeatsViews& views, const WindowSource& source, const NbeatsOptions& options);

// Forecasts of the given windows in the units of the series, valid until the end of the pass. The contribution of a
// stack is its entry minus the previous one; for the first stack, minus the level.
struct NbeatsForecast {
  TensorView y_hat;                     // [G,B,quantiles*horizon] f32
  TensorView level;                     // [G,B] f32
  std::vector<TensorView> after_stack;  // like y_hat; filled if components are requested
};
NbeatsForecast nbeats_predict(model::Exec& exec, const NbeatsShape& shape, const NbeatsLayout& layout,
                              const NbeatsViews& views, const WindowSource& source, int64_t windows,
                              bool components = false);

// Memory and work of a pass of G lanes, obtained by running the same code on the null device.
struct NbeatsPlan {
  memory::Placement placement;
  double flops = 0, bytes = 0;
  std::map<std::string, memory::LifetimeRecorder::OpTotal> ops;
};
enum class NbeatsTask : uint8_t { train, predict };
NbeatsPlan plan_nbeats(const NbeatsShape& shape, int64_t lanes, NbeatsTask task, const NbeatsOptions& options,
                       ops::Precision precision, device::DeviceKind target, device::Isa isa, int threads);

}  // namespace brim::forecast
