// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/timeline.h"
#include "memory/ledger.h"
#include "memory/placement.h"
#include "model/fp8.h"
#include "ops/amax.h"

namespace brim::model {

using device::DeviceKind;
using hub::WeightSource;
using ops::Precision;
using tensor::DType;
using tensor::TensorView;

namespace {

// Cuts aligned pieces from a slab that may not exist yet (base null: sizes only, addresses made up).
class Cutter {
 public:
  explicit Cutter(void* base)
      : base_(base != nullptr ? static_cast<char*>(base) : reinterpret_cast<char*>(uintptr_t{1} << 20)) {}
  TensorView cut(DType dtype, std::initializer_list<int64_t> dims) {
    TensorView v(base_ + used_, dtype, dims);
    if (v.elements() == 0) return {};
    used_ += memory::align_up(v.bytes());
    return v;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

DType matrix_type(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return DType::bf16;
    case Precision::fp16:
      return DType::f16;
    case Precision::fp8:
      return DType::f8e4m3;
    case Precision::int8:
      return DType::i8;
    default:
      return DType::f32;
  }
}

// The name a tensor is stored under; encoders saved alone lack the family prefix ("bert."). The name itself where there
// is none.
std::string stored_name(const WeightSource& source, const std::string& name) {
  if (source.has(name)) return name;
  for (const char* prefix : {"bert.", "roberta.", "distilbert."})
    if (name.rfind(prefix, 0) == 0 && source.has(name.substr(std::strlen(prefix))))
      return name.substr(std::strlen(prefix));
  return name;
}

const TensorView* find_tensor(const WeightSource& source, const std::string& name) {
  return source.find(stored_name(source, name));
}

// What was read of the mapped file would otherwise stay in this process's memory beside what was made of it.
void release_param(const WeightSource& source, const ParamSpec& spec) {
  for (const auto& name : spec.names) source.release(stored_name(source, name));
}

void check_shape(const WeightSource& source, const std::string& name, const TensorView& t, int64_t rows, int64_t cols) {
  const bool vector = cols == 0;
  const bool good = vector ? t.elements() == rows && t.rank == 1 : t.rank == 2 && t.dim[0] == rows && t.dim[1] == cols;
  if (!good)
    fail(ErrorCode::bad_model,
         "{}: has shape {}, config.json asks for [{}{}]; the weights and the config are of different models",
         source.where(name), t.shape_text(), rows, vector ? "" : fmt::format(",{}", cols));
}

// A parameter as it lies in the file, stacked over its names.
struct Stacked {
  TensorView data;             // [rows,cols] or [rows], f32, f16, bf16 or i8
  TensorView scale;            // [rows] f32 for i8
  std::vector<std::byte> own;  // storage where stacking had to copy
  std::vector<float> own_scale;
};

std::optional<Stacked> stack_param(const WeightSource& source, const ParamSpec& spec) {
  const int64_t part_rows = spec.rows / static_cast<int64_t>(spec.names.size());
  std::vector<const TensorView*> parts, scales;
  for (const auto& name : spec.names) {
    const TensorView* t = find_tensor(source, name);
    if (t == nullptr) {
      if (spec.head) return std::nullopt;
      (void)source.get(name);  // throws with the nearest name
      fail(ErrorCode::bad_model, "{}: no tensor {}", source.where(), name);
    }
    check_shape(source, name, *t, part_rows, spec.cols);
    const TensorView* scale = nullptr;
    if (t->dtype == DType::i8) {
      scale = find_tensor(source, name + "_scale");
      if (scale == nullptr) fail(ErrorCode::bad_model, "{}: int8 without {}_scale beside it", source.where(name), name);
      if (scale->dtype != DType::f32 || scale->elements() != part_rows)
        fail(ErrorCode::bad_model, "{}: is {}, wanted f32[{}]", source.where(name + "_scale"), scale->shape_text(),
             part_rows);
    } else if (t->dtype != DType::f32 && t->dtype != DType::f16 && t->dtype != DType::bf16 && t->dtype != DType::f64) {
      fail(ErrorCode::bad_model, "{}: type {} cannot be used as a weight", source.where(name), dtype_name(t->dtype));
    }
    if (!parts.empty() && (parts[0]->dtype != t->dtype))
      fail(ErrorCode::bad_model, "{}: type {} differs from {} of its neighbours", source.where(name),
           dtype_name(t->dtype), dtype_name(parts[0]->dtype));
    parts.push_back(t);
    scales.push_back(scale);
  }
  Stacked s;
  auto view = [&](void* data, DType dtype) {
    return spec.cols > 0 ? TensorView(data, dtype, {spec.rows, spec.cols}) : TensorView(data, dtype, {spec.rows});
  };
  if (parts.size() == 1) {
    s.data = view(parts[0]->data, parts[0]->dtype);
    if (scales[0] != nullptr) s.scale = TensorView(scales[0]->data, DType::f32, {spec.rows});
    return s;
  }
  const size_t part_bytes = static_cast<size_t>(parts[0]->bytes());
  s.own.resize(part_bytes * parts.size());
  for (size_t i = 0; i < parts.size(); ++i) std::memcpy(s.own.data() + i * part_bytes, parts[i]->data, part_bytes);
  s.data = view(s.own.data(), parts[0]->dtype);
  if (scales[0] != nullptr) {
    for (const TensorView* t : scales)
      s.own_scale.insert(s.own_scale.end(), t->as<float>(), t->as<float>() + t->elements());
    s.scale = TensorView(s.own_scale.data(), DType::f32, {spec.rows});
  }
  return s;
}

// Elements [begin, end), widened.
void widen(const Stacked& s, int64_t begin, int64_t end, float* out) {
  if (s.data.dtype != DType::i8) {
    convert_elements(static_cast<const char*>(s.data.data) + begin * dtype_bytes(s.data.dtype), s.data.dtype, out,
                     DType::f32, end - begin);
    return;
  }
  const int64_t cols = s.data.elements() / std::max<int64_t>(1, s.data.rows());
  for (int64_t i = begin; i < end; ++i)
    out[i - begin] = static_cast<float>(s.data.as<int8_t>()[i]) * s.scale.as<float>()[i / cols];
}
void widen(const Stacked& s, float* out) { widen(s, 0, s.data.elements(), out); }

void fill_matrix(const Stacked& s, const ops::LinearWeight& w, DeviceKind target) {
  if (target == DeviceKind::cpu) {
    const bool keep = s.data.dtype == DType::i8 ? w.precision == Precision::int8 : s.data.dtype != DType::f64;
    if (keep) {
      linear_pack(s.data, s.scale, w.precision, w.isa, w.data.data, w.scale ? w.scale.as<float>() : nullptr);
      return;
    }
    std::vector<float> wide(static_cast<size_t>(w.N * w.K));
    widen(s, wide.data());
    linear_pack(TensorView(wide.data(), DType::f32, {w.N, w.K}), {}, w.precision, w.isa, w.data.data,
                w.scale ? w.scale.as<float>() : nullptr);
    return;
  }
  std::vector<float> wide(static_cast<size_t>(w.N * w.K));
  widen(s, wide.data());
  if (w.precision != Precision::fp8) {
    convert_elements(wide.data(), DType::f32, w.data.data, w.data.dtype, w.N * w.K);
    return;
  }
  float amax = 0;
  for (const float v : wide) amax = std::max(amax, std::abs(v));
  const float scale = amax > 0 ? amax / ops::kFp8Largest : 1.0f;
  *w.scale.as<float>() = scale;
  for (size_t i = 0; i < wide.size(); ++i) static_cast<uint8_t*>(w.data.data)[i] = to_e4m3(wide[i] / scale);
}

void fill_fp8_scales(const WeightSource& source, const std::vector<ParamSpec>& params, int64_t l, int64_t H,
                     const LayerWeights& layer) {
  using P = ParamIndex;
  const auto read = [&](int64_t param) {
    const auto stacked = stack_param(source, params[param]);
    std::vector<float> wide(static_cast<size_t>(stacked->data.elements()));
    widen(*stacked, wide.data());
    return wide;
  };
  const auto put = [](const Fp8Scale& scale, float bound) {
    if (!scale.quantise) return;  // its product runs in bf16
    *scale.quantise.as<float>() = bound > 0 ? ops::kFp8Largest / bound : 1.0f;
    *scale.dequantise.as<float>() = bound > 0 ? bound / ops::kFp8Largest : 1.0f;
  };
  const int64_t at = P::layer(l), before = P::layer(l - 1);
  const std::vector<float> gamma = l == 0 ? read(P::embed_gamma) : read(before + P::norm2_gamma),
                           beta = l == 0 ? read(P::embed_beta) : read(before + P::norm2_beta);
  put(layer.input, norm_bound(gamma, beta));
  // Attention averages values, so their bound is its own.
  const std::vector<float> qkv = read(at + P::qkv_w), qkv_bias = read(at + P::qkv_b);
  put(layer.context, product_bound(std::span(qkv).subspan(static_cast<size_t>(2 * H * H)),
                                   std::span(qkv_bias).subspan(static_cast<size_t>(2 * H)), gamma, beta));
  const std::vector<float> gamma1 = read(at + P::norm1_gamma), beta1 = read(at + P::norm1_beta);
  put(layer.attended, norm_bound(gamma1, beta1));
  put(layer.middle, product_bound(read(at + P::ffn1_w), read(at + P::ffn1_b), gamma1, beta1));
}

// A piece at a time: a word table widened whole would be the largest thing in memory.
void fill_vector(const Stacked& s, const TensorView& out) {
  constexpr int64_t kPiece = int64_t{1} << 16;
  std::vector<float> wide(static_cast<size_t>(std::min(kPiece, s.data.elements())));
  for (int64_t begin = 0; begin < s.data.elements(); begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, s.data.elements());
    widen(s, begin, end, wide.data());
    convert_elements(wide.data(), DType::f32, static_cast<char*>(out.data) + begin * dtype_bytes(out.dtype), out.dtype,
                     end - begin);
  }
}

}  // namespace

DType activation_type(Precision precision, DeviceKind target) {
  if (target == DeviceKind::cpu) return DType::f32;
  switch (precision) {
    case Precision::fp16:
      return DType::f16;
    case Precision::bf16:
    case Precision::fp8:
    case Precision::int8:
      return DType::bf16;
    default:
      return DType::f32;
  }
}

Precision head_precision(Precision precision, DeviceKind target) {
  if (target == DeviceKind::cpu) return Precision::fp32;
  return precision == Precision::fp8 || precision == Precision::int8 ? Precision::bf16 : precision;
}

WeightLayout layout_weights(const ModelShape& s, Precision precision, DeviceKind target, device::Isa isa,
                            bool tables_in_slab, void* base) {
  Cutter slab(base);
  const DType activation = activation_type(precision, target);
  const int64_t H = s.hidden, F = s.ffn;
  auto matrix = [&](int64_t N, int64_t K, Precision p) {
    ops::LinearWeight w;
    if (N == 0) return w;
    if (p == Precision::fp8 && !fp8_takes(N, K)) p = Precision::bf16;
    w.N = N;
    w.K = K;
    w.precision = p;
    w.isa = isa;
    w.data = target == DeviceKind::cpu ? slab.cut(DType::u8, {linear_packed_bytes(N, K, p, isa)})
                                       : slab.cut(matrix_type(p), {N, K});
    if (p == Precision::int8) w.scale = slab.cut(DType::f32, {N});
    if (p == Precision::fp8) w.scale = slab.cut(DType::f32, {1});
    return w;
  };
  auto vector = [&](int64_t n) { return slab.cut(activation, {n}); };

  WeightLayout layout;
  EncoderWeights& w = layout.weights;
  if (tables_in_slab) {
    const DType table = target == DeviceKind::cpu ? DType::f16 : activation;
    w.word = slab.cut(table, {s.vocab, H});
    w.position = slab.cut(table, {s.positions, H});
    if (s.types > 0) w.type = slab.cut(table, {1, H});
  }
  w.norm_gamma = vector(H);
  w.norm_beta = vector(H);
  for (int64_t l = 0; l < s.layers; ++l) {
    LayerWeights& layer = w.layers.emplace_back();
    if (l + 1 < s.layers) {
      layer.qkv = matrix(3 * H, H, precision);
    } else {
      layer.q = matrix(H, H, precision);
      layer.kv = matrix(2 * H, H, precision);
    }
    layer.out = matrix(H, H, precision);
    layer.ffn1 = matrix(F, H, precision);
    layer.ffn2 = matrix(H, F, precision);
    layer.qkv_bias = vector(3 * H);
    layer.out_bias = vector(H);
    layer.ffn1_bias = vector(F);
    layer.ffn2_bias = vector(H);
    layer.norm1_gamma = vector(H);
    layer.norm1_beta = vector(H);
    layer.norm2_gamma = vector(H);
    layer.norm2_beta = vector(H);
    const ops::LinearWeight& first = layer.qkv.N > 0 ? layer.qkv : layer.q;
    for (const auto& [scale, reader] : {std::pair{&layer.input, &first},
                                        {&layer.context, &layer.out},
                                        {&layer.attended, &layer.ffn1},
                                        {&layer.middle, &layer.ffn2}}) {
      if (reader->precision != Precision::fp8) continue;
      scale->quantise = slab.cut(DType::f32, {1});
      scale->dequantise = slab.cut(DType::f32, {1});
    }
  }
  const Precision head = head_precision(precision, target);
  if (s.sequence_classes > 0) {
    w.dense = matrix(H, H, head);
    w.dense_bias = vector(H);
    w.sequence = matrix(s.sequence_classes, H, head);
    w.sequence_bias = vector(s.sequence_classes);
  }
  if (s.token_classes > 0) {
    w.token = matrix(s.token_classes, H, head);
    w.token_bias = vector(s.token_classes);
  }
  layout.bytes = slab.used();
  return layout;
}

EncoderWeights describe_weights(const ModelShape& shape, Precision precision, DeviceKind target, device::Isa isa) {
  return layout_weights(shape, precision, target, isa, true, nullptr).weights;
}

ops::BatchView describe_batch(int64_t tokens, int64_t sequences, int64_t longest) {
  auto* nowhere = reinterpret_cast<void*>(uintptr_t{1} << 12);
  ops::BatchView b;
  b.T = tokens;
  b.B = sequences;
  b.S = longest;
  b.ids = b.positions = TensorView(nowhere, DType::i32, {tokens});
  b.starts = TensorView(nowhere, DType::i32, {sequences + 1});
  b.order = TensorView(nowhere, DType::i32, {sequences});
  b.n_long = longest > ops::kShortTokens ? sequences : 0;
  return b;
}

ModelShape read_shape(const std::filesystem::path& dir, hub::HfConfig* out) {
  hub::HfConfig config = hub::load_hf_config(dir);
  const auto source = WeightSource::open(dir);
  const ModelShape shape = shape_of(config, head_kind(config, source->names()));
  if (out != nullptr) *out = std::move(config);
  return shape;
}

bool read_param(const WeightSource& source, const ModelShape&, const ParamSpec& spec, float* out) {
  const auto stacked = stack_param(source, spec);
  if (!stacked) return false;
  widen(*stacked, out);
  release_param(source, spec);
  return true;
}

TableHome table_home(const WeightSource& source, const ModelShape& s, DeviceKind target) {
  TableHome home;
  if (target != DeviceKind::cpu) return home;
  const auto params = model_params(s);
  int64_t bytes = 0;
  for (const int64_t table : {ParamIndex::word, ParamIndex::position, ParamIndex::type}) {
    if (params[table].rows == 0) continue;
    const hub::StoredTensor* stored = source.describe(stored_name(source, params[table].names[0]));
    if (stored == nullptr || !stored->dtype) continue;
    if (table == ParamIndex::word && (stored->dtype == DType::i8 || stored->dtype == DType::f64)) return home;
    bytes += stored->elements * dtype_bytes(*stored->dtype);
  }
  home.in_slab = false;
  home.mapped_bytes = bytes;
  return home;
}

TableHome table_home(const ModelShape& s, DeviceKind target) {
  if (target != DeviceKind::cpu) return {};
  return {false, 4 * s.hidden * (s.vocab + s.positions + s.types)};
}

int64_t load_bytes(const ModelShape& s, int threads) { return threads * 4 * s.hidden * std::max(3 * s.hidden, s.ffn); }

std::unique_ptr<Model> Model::load(const std::filesystem::path& dir, device::Device& device, Precision precision,
                                   memory::PlannedMemory* planned) {
  ScopedZone zone(Zone::load_model);
  auto model = std::unique_ptr<Model>(new Model);
  model->dir_ = dir;
  model->config_ = hub::load_hf_config(dir);
  model->source_ = WeightSource::open(dir);
  const WeightSource& source = *model->source_;
  model->shape_ = shape_of(model->config_, head_kind(model->config_, source.names()));
  model->precision_ = precision;
  model->device_kind_ = device.kind();
  const ModelShape& s = model->shape_;
  const device::Isa isa = device::best_isa();
  const bool cpu = device.kind() == DeviceKind::cpu;
  const auto params = model_params(s);

  const bool tables_in_slab = table_home(source, s, device.kind()).in_slab;
  const int64_t bytes = layout_weights(s, precision, device.kind(), isa, tables_in_slab, nullptr).bytes;
  model->slab_ = memory::Ledger::allocate(device, planned, memory::Tag::weights, "model", bytes);
  model->layout_ = layout_weights(s, precision, device.kind(), isa, tables_in_slab, model->slab_.data());
  // A slab that the host cannot write is filled beside it and copied at once.
  std::unique_ptr<std::byte[]> host;
  WeightLayout target = model->layout_;
  if (!cpu) {
    host.reset(new std::byte[static_cast<size_t>(bytes)]);
    target = layout_weights(s, precision, device.kind(), isa, tables_in_slab, host.get());
  }

  // Every parameter is one task; they fill disjoint pieces.
  std::vector<std::function<void()>> tasks;
  auto matrix = [&](int64_t param, const ops::LinearWeight& w) {
    if (w.N == 0) return;
    tasks.push_back([&, param, w] {
      const auto stacked = stack_param(source, params[param]);
      if (!stacked)
        fail(ErrorCode::bad_model, "{}: no tensor {}: the classification head is missing", source.where(),
             params[param].names[0]);
      fill_matrix(*stacked, w, device.kind());
      release_param(source, params[param]);
    });
  };
  auto vector = [&](int64_t param, const TensorView& v) {
    if (!v) return;
    tasks.push_back([&, param, v] {
      const auto stacked = stack_param(source, params[param]);
      if (!stacked)
        fail(ErrorCode::bad_model, "{}: no tensor {}: the classification head is missing", source.where(),
             params[param].names[0]);
      fill_vector(*stacked, v);
      release_param(source, params[param]);
    });
  };
  EncoderWeights& w = target.weights;
  using P = ParamIndex;
  auto table = [&](int64_t param, TensorView EncoderWeights::*member) {
    if (params[param].rows == 0) return;
    if (tables_in_slab) {
      const TensorView out = w.*member;
      tasks.push_back([&, param, out] {
        const auto stacked = stack_param(source, params[param]);
        const int64_t rows = out.rows();  // the type table keeps its first row only
        Stacked part;
        part.data = stacked->data.slice_rows(0, rows);
        if (stacked->scale) part.scale = stacked->scale.slice_rows(0, rows);
        fill_vector(part, out);
        release_param(source, params[param]);
      });
    } else {
      const auto stacked = stack_param(source, params[param]);
      w.*member = member == &EncoderWeights::type ? stacked->data.slice_rows(0, 1) : stacked->data;
    }
  };
  table(P::word, &EncoderWeights::word);
  table(P::position, &EncoderWeights::position);
  table(P::type, &EncoderWeights::type);
  vector(P::embed_gamma, w.norm_gamma);
  vector(P::embed_beta, w.norm_beta);
  for (int64_t l = 0; l < s.layers; ++l) {
    const LayerWeights& layer = w.layers[l];
    const int64_t at = P::layer(l);
    if (l + 1 < s.layers) {
      matrix(at + P::qkv_w, layer.qkv);
    } else {
      tasks.push_back([&, at, layer] {
        const auto stacked = stack_param(source, params[at + P::qkv_w]);
        for (const bool is_q : {true, false}) {
          Stacked part;
          const int64_t begin = is_q ? 0 : s.hidden, end = is_q ? s.hidden : 3 * s.hidden;
          part.data = stacked->data.slice_rows(begin, end);
          if (stacked->scale) part.scale = stacked->scale.slice_rows(begin, end);
          fill_matrix(part, is_q ? layer.q : layer.kv, device.kind());
        }
      });
    }
    matrix(at + P::out_w, layer.out);
    matrix(at + P::ffn1_w, layer.ffn1);
    matrix(at + P::ffn2_w, layer.ffn2);
    vector(at + P::qkv_b, layer.qkv_bias);
    vector(at + P::out_b, layer.out_bias);
    vector(at + P::ffn1_b, layer.ffn1_bias);
    vector(at + P::ffn2_b, layer.ffn2_bias);
    vector(at + P::norm1_gamma, layer.norm1_gamma);
    vector(at + P::norm1_beta, layer.norm1_beta);
    vector(at + P::norm2_gamma, layer.norm2_gamma);
    vector(at + P::norm2_beta, layer.norm2_beta);
    if (precision == Precision::fp8)
      tasks.push_back([&, l, at] { fill_fp8_scales(source, params, l, s.hidden, w.layers[l]); });
  }
  const HeadIndex head = head_index(s);
  matrix(head.dense_w, w.dense);
  vector(head.dense_b, w.dense_bias);
  matrix(head.sequence_w, w.sequence);
  vector(head.sequence_b, w.sequence_bias);
  matrix(head.token_w, w.token);
  vector(head.token_b, w.token_bias);

  const auto fill = [&](size_t i, int) { tasks[i](); };
  const auto stream = device.make_stream();
  if (!cpu) {
    ThreadPool(hardware_threads()).parallel_for(tasks.size(), fill);
    stream->copy(model->slab_.data(), host.get(), static_cast<size_t>(bytes));
    stream->synchronize();
    model->source_.reset();
    return model;
  }
  if (ThreadPool* pool =
          static_cast<device::CpuStream&>(*stream).pool()) {  // the plan counts a matrix for each of its threads
    pool->parallel_for(tasks.size(), fill);
  } else {
    for (const auto& task : tasks) task();
  }
  model->layout_ = target;
  ::malloc_trim(0);  // the limit is for the whole process, and what packing took is needed no more
  if (tables_in_slab) model->source_.reset();
  return model;
}

}  // namespace brim::model
