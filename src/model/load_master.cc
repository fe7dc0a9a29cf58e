// SPDX-License-Identifier: Apache-2.0
// Initial values of training: read from a model's files, or drawn for new heads and adapters.
#include <algorithm>
#include <cmath>
#include <random>

#include "model/train_state.h"
#include "model/weights.h"

namespace brim::model {

namespace {

// Same as PEFT: A is uniform within the reciprocal root of its width, B is zero, so training begins at the base model.
void draw_adapter(const ParamSpec& p, size_t index, uint64_t seed, float* out) {
  if (p.adapter != ParamSpec::Adapter::a) return;
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15ULL + index);
  const double bound = 1 / std::sqrt(static_cast<double>(p.cols));
  for (int64_t k = 0; k < p.elements(); ++k)
    out[k] = static_cast<float>(bound * ((static_cast<double>(random() >> 11) + 0.5) * 0x1p-52 - 1));
}

// One generator per parameter, seeded by its index, so that values do not depend on which others are initialized.
void draw_param(const ParamSpec& p, size_t index, float initializer_range, uint64_t seed, float* out) {
  if (p.kind == ParamKind::norm && p.names[0].ends_with(".weight")) std::fill_n(out, p.elements(), 1.0f);
  if (p.kind != ParamKind::matrix) return;  // biases start at zero
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15ULL + index);
  auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  for (int64_t k = 0; k < p.elements(); ++k) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    out[k] = static_cast<float>(initializer_range * radius * std::cos(2 * M_PI * uniform()));
  }
}

}  // namespace

std::vector<std::string> load_master(const hub::WeightSource& source, const ModelShape& shape, float initializer_range,
                                     uint64_t seed, std::vector<float>& master, bool new_classes) {
  const SlabLayout layout = slab_layout(shape);
  master.assign(static_cast<size_t>(layout.elements()), 0.0f);
  std::vector<std::string> drawn;
  for (size_t i = 0; i < layout.params.size(); ++i) {
    const ParamSpec& p = layout.params[i];
    if (p.rows == 0) continue;
    float* out = &master[static_cast<size_t>(layout.offset[i])];
    if (p.adapter != ParamSpec::Adapter::none) {
      draw_adapter(p, i, seed, out);
      continue;
    }
    if (!(new_classes && p.classes) && read_param(source, shape, p, out)) continue;
    draw_param(p, i, initializer_range, seed, out);
    drawn.push_back(p.names[0]);
  }
  source.check_unchanged();
  return drawn;
}

}  // namespace brim::model
