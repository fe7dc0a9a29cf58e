// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
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
  const std::string alone = name.substr(name.find('.') + 1);
  return source.has(alone) ? alone : name;
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
  if (good) return;
  const std::string keys =
      hub::keys_of_size(std::filesystem::path(source.where()).parent_path(), vector || t.dim[0] != rows ? rows : cols);
  fail(ErrorCode::bad_model,
       "{}: has shape {}, config.json asks for [{}{}]{}; the weights and the config are of different models",
       source.where(name), t.shape_text(), rows, vector ? "" : fmt::format(",{}", cols),
       keys.empty() ? "" : " (" + keys + ")");
}

// A parameter as it lies in the file, stacked over its names.
struct Stacked {
  TensorView data;             // [rows,cols] or [rows], f32, f16, bf16 or i8
  TensorView scale;            // [rows] f32 for i8
  std::vector<std::byte> own;  // storage where stacking had to copy
  std::vector<float> own_scale;
};

// How many layers, or groups of them, have a tensor of this name, which is that of number `own`.
int64_t layers_held(const WeightSource& source, int64_t own, const std::string& name) {
  const std::string number = fmt::format(".{}.", own);
  const size_t at = name.find(number);
  if (at == std::string::npos) return std::numeric_limits<int64_t>::max();
  int64_t held = 0;
  const auto of_layer = [&](int64_t l) {
    return name.substr(0, at) + fmt::format(".{}.", l) + name.substr(at + number.size());
  };
  while (find_tensor(source, of_layer(held)) != nullptr) ++held;
  return held;
}

std::optional<Stacked> stack_param(const WeightSource& source, const ParamSpec& spec) {
  const int64_t part_rows = spec.rows / static_cast<int64_t>(spec.names.size());
  std::vector<const TensorView*> parts, scales;
  for (const auto& name : spec.names) {
    const TensorView* t = find_tensor(source, name);
    if (t == nullptr) {
      if (spec.head) return std::nullopt;
      const int64_t own = std::max(spec.layer, spec.group);
      if (const int64_t held = own < 0 ? 0 : layers_held(source, own, name); own >= held)
        fail(ErrorCode::bad_model, "{}: no tensor {}: config.json asks for {} {} or more (\"{}\"), the weights hold {}",
             source.where(), name, own + 1, spec.group < 0 ? "layers" : "groups of layers",
             spec.group < 0 ? "num_hidden_layers" : "num_hidden_groups", held);
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

// Some of its rows, where they lie.
Stacked rows_of(const Stacked& s, int64_t begin, int64_t end) {
  Stacked part;
  part.data = s.data.slice_rows(begin, end);
  if (s.scale) part.scale = s.scale.slice_rows(begin, end);
  return part;
}

// Elements [begin, end), widened.
void widen(const Stacked& s, int64_t begin, int64_t end, float* out) {
  if (s.data.dtype != DType::i8) {
    convert_elements(static_cast<const char*>(s.data.data) + begin * dtype_bytes(s.data.dtype), s.data.dtype, out,
                     DType::f32, end - begin);
    return;
  }
  const int64_t cols = s.data.elements() / std::max<int64_t>(1, s.data.rows());
  for (int64_t at = begin; at < end;) {
    const int64_t row = at / cols, row_end = std::min(end, (row + 1) * cols);
    const float scale = s.scale.as<float>()[row];
    const int8_t* stored = s.data.as<int8_t>();
    for (; at < row_end; ++at) out[at - begin] = static_cast<float>(stored[at]) * scale;
  }
}
void widen(const Stacked& s, float* out) { widen(s, 0, s.data.elements(), out); }

// Elements [begin, end) as `to`; by way of fp32 a piece at a time, since a table widened whole would be the largest
// thing in memory.
void convert(const Stacked& s, int64_t begin, int64_t end, void* out, DType to) {
  constexpr int64_t kPiece = int64_t{1} << 14;
  if (s.data.dtype == DType::f32 || s.data.dtype == to) {
    convert_elements(static_cast<const char*>(s.data.data) + begin * dtype_bytes(s.data.dtype), s.data.dtype, out, to,
                     end - begin);
    return;
  }
  std::vector<float> wide(static_cast<size_t>(std::min(kPiece, end - begin)));
  for (int64_t at = begin; at < end; at += kPiece) {
    const int64_t next = std::min(at + kPiece, end);
    widen(s, at, next, wide.data());
    convert_elements(wide.data(), DType::f32, static_cast<char*>(out) + (at - begin) * dtype_bytes(to), to, next - at);
  }
}

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
  if (w.precision != Precision::fp8) return convert(s, 0, w.N * w.K, w.data.data, w.data.dtype);
  std::vector<float> wide(static_cast<size_t>(w.N * w.K));
  widen(s, wide.data());
  float amax = 0;
  for (const float v : wide) amax = std::max(amax, std::abs(v));
  const float scale = amax > 0 ? amax / ops::kFp8Largest : 1.0f;
  *w.scale.as<float>() = scale;
  for (size_t i = 0; i < wide.size(); ++i) static_cast<uint8_t*>(w.data.data)[i] = ops::to_e4m3(wide[i] / scale);
}

void fill_fp8_scale(const WeightSource& source, const std::vector<ParamSpec>& params, const InputBound& input,
                    const Fp8Scale& scale) {
  const auto read = [&](int64_t place, size_t size) {
    if (params[static_cast<size_t>(place)].rows == 0) return std::vector<float>(size);  // no bias
    const auto stacked = stack_param(source, params[static_cast<size_t>(place)]);
    std::vector<float> wide(static_cast<size_t>(stacked->data.elements()));
    widen(*stacked, wide.data());
    return wide;
  };
  const std::vector<float> gamma = read(input.gamma, 0), beta = read(input.beta, gamma.size());
  float bound = 0;
  if (input.kind == InputBound::Kind::norm) {
    bound = norm_bound(gamma, beta);
  } else {
    const std::vector<float> w = read(input.w, 0), b = read(input.b, w.size() / gamma.size());
    const auto row = static_cast<size_t>(input.first_row);
    bound = product_bound(std::span(w).subspan(row * gamma.size()), std::span(b).subspan(row), gamma, beta);
  }
  *scale.quantise.as<float>() = bound > 0 ? ops::kFp8Largest / bound : 1.0f;
  *scale.dequantise.as<float>() = bound > 0 ? bound / ops::kFp8Largest : 1.0f;
}

void fill_vector(const Stacked& s, const TensorView& out, int64_t first, int64_t last) {
  convert(s, first, last, static_cast<char*>(out.data) + first * dtype_bytes(out.dtype), out.dtype);
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
  const DType table = target == DeviceKind::cpu ? DType::f16 : activation;
  auto matrix = [&](int64_t N, int64_t K, Precision p) {
    ops::LinearWeight w;
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
  WeightLayout layout;
  for (const ParamSpec& spec : model_params(s)) {
    Param& p = layout.params.emplace_back();
    if (spec.rows == 0) continue;
    if (spec.kind == ParamKind::embedding) {
      if (tables_in_slab) p.plain = slab.cut(table, {spec.rows, spec.cols});
    } else if (spec.kind != ParamKind::matrix) {
      p.plain = spec.cols > 0 ? slab.cut(activation, {spec.rows, spec.cols}) : slab.cut(activation, {spec.rows});
    } else {
      const Precision precise = matrix_precision(spec, precision, target);
      if (spec.whole_scored) p.matrix = matrix(spec.rows, spec.cols, precise);
      if (spec.split > 0) {
        p.first = matrix(spec.split, spec.cols, precise);
        p.rest = matrix(spec.rows - spec.split, spec.cols, precise);
      }
      if (precise == Precision::fp8) {
        p.input.quantise = slab.cut(DType::f32, {1});
        p.input.dequantise = slab.cut(DType::f32, {1});
      }
    }
  }
  layout.bytes = slab.used();
  return layout;
}

Params describe_weights(const ModelShape& shape, Precision precision, DeviceKind target, device::Isa isa) {
  return layout_weights(shape, precision, target, isa, true, nullptr).params;
}

ModelShape read_shape(const std::filesystem::path& dir, hub::HfConfig* out) {
  hub::HfConfig config = hub::load_hf_config(dir);
  const auto source = WeightSource::open(dir);
  const ModelShape shape = shape_of(config, head_kind(config, source->names()));
  if (out != nullptr) *out = std::move(config);
  return shape;
}

ModelShape both_heads(const ModelShape& classifier, const ModelShape& tagger) {
  ModelShape both = classifier;
  both.token_classes = tagger.token_classes;
  return both;
}

namespace {

bool same_tensor(const TensorView* x, const TensorView* y) {
  return x != nullptr && y != nullptr && x->dtype == y->dtype && x->elements() == y->elements() &&
         std::memcmp(x->data, y->data, static_cast<size_t>(x->bytes())) == 0;
}

}  // namespace

bool same_encoder(const std::filesystem::path& classifier, const std::filesystem::path& tagger) {
  const ModelShape a = read_shape(classifier);
  ModelShape b = read_shape(tagger);
  if (a.sequence_classes == 0 || b.token_classes == 0 || a.mean_pooling) return false;
  const auto without_heads = [](ModelShape s) {
    s.sequence_classes = s.token_classes = 0;
    s.multi_label = s.regression = s.raw_scores = false;
    s.hidden_dropout = s.attention_dropout = s.head_dropout = s.feed_forward_dropout = 0;
    return s;
  };
  if (without_heads(a) != without_heads(b)) return false;
  for (const char* file :
       {"tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model",
        "spm.model", "spiece.model", "bpe.codes", "added_tokens.json", "special_tokens_map.json"}) {
    const bool there = std::filesystem::exists(classifier / file);
    if (there != std::filesystem::exists(tagger / file)) return false;
    if (there && read_file(classifier / file) != read_file(tagger / file)) return false;
  }
  const auto source = WeightSource::open(classifier), other = WeightSource::open(tagger);
  for (const ParamSpec& spec : model_params(a)) {
    if (spec.head || spec.rows == 0) continue;
    for (const std::string& name : spec.names) {
      const TensorView *x = find_tensor(*source, name), *y = find_tensor(*other, name);
      if (!same_tensor(x, y)) return false;
      if (x->dtype == DType::i8 &&
          !same_tensor(find_tensor(*source, name + "_scale"), find_tensor(*other, name + "_scale")))
        return false;
    }
    release_param(*source, spec);
    release_param(*other, spec);
  }
  return true;
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
  int64_t bytes = 0;
  for (const ParamSpec& spec : model_params(s)) {
    if (spec.kind != ParamKind::embedding || spec.rows == 0) continue;
    const hub::StoredTensor* stored = source.describe(stored_name(source, spec.names[0]));
    if (stored == nullptr || !stored->dtype) continue;
    if (spec.int8 && (stored->dtype == DType::i8 || stored->dtype == DType::f64)) return home;
    bytes += stored->elements * dtype_bytes(*stored->dtype);
  }
  home.in_slab = false;
  home.mapped_bytes = bytes;
  return home;
}

TableHome table_home(const ModelShape& s, DeviceKind target) {
  if (target != DeviceKind::cpu) return {};
  int64_t elements = 0;
  for (const ParamSpec& spec : model_params(s))
    if (spec.kind == ParamKind::embedding) elements += spec.elements();
  return {false, 4 * elements};
}

int64_t load_bytes(const ModelShape& s, int threads) {
  int64_t largest = 0;
  for (const ParamSpec& spec : model_params(s))
    if (spec.kind == ParamKind::matrix) largest = std::max(largest, spec.elements());
  return threads * 4 * largest;
}

namespace {

// How far from `base` on a parameter's bytes reach.
int64_t end_in(const std::byte* base, const Param& p) {
  int64_t end = 0;
  for (const TensorView& v : {p.plain, p.matrix.data, p.matrix.scale, p.first.data, p.first.scale, p.rest.data,
                              p.rest.scale, p.input.quantise, p.input.dequantise})
    if (v) end = std::max(end, static_cast<const std::byte*>(v.data) - base + v.bytes());
  return end;
}

}  // namespace

std::unique_ptr<Model> Model::load(const std::filesystem::path& dir, device::Device& device, Precision precision,
                                   memory::PlannedMemory* planned) {
  return load_both(dir, {}, device, precision, planned);
}

std::unique_ptr<Model> Model::load_both(const std::filesystem::path& dir, const std::filesystem::path& tagger,
                                        device::Device& device, Precision precision, memory::PlannedMemory* planned,
                                        const Meanwhile& meanwhile) {
  ScopedZone zone(Zone::load_model);
  auto model = std::unique_ptr<Model>(new Model);
  model->dir_ = dir;
  model->config_ = hub::load_hf_config(dir);
  model->source_ = WeightSource::open(dir);
  const WeightSource& source = *model->source_;
  model->shape_ = shape_of(model->config_, head_kind(model->config_, source.names()));
  std::unique_ptr<WeightSource> tagger_source;
  std::vector<ParamSpec> tagger_params;  // a list has the same places whatever heads there are
  if (!tagger.empty()) {
    const ModelShape tags = read_shape(tagger);
    tagger_source = WeightSource::open(tagger);
    tagger_params = model_params(tags);
    model->shape_ = both_heads(model->shape_, tags);
  }
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

  // Every parameter is one task, a table several; they fill disjoint pieces.
  constexpr int64_t kTableElements = int64_t{1} << 20;  // of a task
  std::vector<std::function<void()>> tasks;
  std::vector<int64_t> ends;  // of the slab: where all is filled up to once this task and those before it are done
  const auto stack = [&](const ParamSpec& spec) {
    const auto place = static_cast<size_t>(&spec - params.data());
    const bool of_tagger = spec.head && tagger_source != nullptr && tagger_params[place].rows > 0;
    const WeightSource& from = of_tagger ? *tagger_source : source;
    const ParamSpec& wanted = of_tagger ? tagger_params[place] : spec;
    auto stacked = stack_param(from, wanted);
    if (!stacked)
      fail(ErrorCode::bad_model, "{}: no tensor {}: the classification head is missing", from.where(), wanted.names[0]);
    return std::move(*stacked);
  };
  for (size_t i = 0; i < params.size(); ++i) {
    const ParamSpec& spec = params[i];
    Param& p = target.params[i];
    if (spec.rows == 0) continue;
    if (spec.kind == ParamKind::embedding && !tables_in_slab) {
      p.plain = stack(spec).data;
      continue;
    }
    if (spec.kind == ParamKind::embedding) {
      const int64_t pieces = spec.elements() / kTableElements + 1;
      const auto left = std::make_shared<std::atomic<int64_t>>(pieces);
      for (int64_t n = 0; n < pieces; ++n)
        tasks.push_back([&, left, pieces, n] {
          fill_vector(stack(spec), p.plain, spec.elements() * n / pieces, spec.elements() * (n + 1) / pieces);
          if (--*left == 0) release_param(source, spec);
        });
      ends.resize(tasks.size());
      if (!cpu) ends.back() = end_in(host.get(), p);
      continue;
    }
    tasks.push_back([&] {
      const Stacked stacked = stack(spec);
      if (p.plain) fill_vector(stacked, p.plain, 0, stacked.data.elements());
      if (p.matrix.N > 0) fill_matrix(stacked, p.matrix, device.kind());
      if (p.first.N > 0) {
        fill_matrix(rows_of(stacked, 0, spec.split), p.first, device.kind());
        fill_matrix(rows_of(stacked, spec.split, spec.rows), p.rest, device.kind());
      }
      release_param(source, spec);
    });
    if (p.input.quantise) tasks.push_back([&] { fill_fp8_scale(source, params, spec.input, p.input); });
    ends.resize(tasks.size());
    if (!cpu) ends.back() = end_in(host.get(), p);
  }

  // Of tasks that fail the first in the list of parameters is reported, whichever thread is faster.
  std::mutex failing;
  std::atomic<size_t> failed{tasks.size()};
  std::exception_ptr failure;
  const auto fill = [&](size_t i, int) {
    if (i > failed) return;
    try {
      tasks[i]();
    } catch (...) {
      std::lock_guard lock(failing);
      if (i > failed) return;
      failed = i;
      failure = std::current_exception();
    }
  };
  const auto stream = device.make_stream();
  if (!cpu) {
    // What is filled is copied while the rest is, in pieces: others launch batches between them.
    constexpr int64_t kCopyBytes = int64_t{4} << 20;
    std::mutex mutex;
    std::condition_variable progress;
    std::vector<bool> done(tasks.size());
    size_t first_open = 0;
    int64_t filled = 0;
    const auto note_done = [&](size_t i) {
      std::lock_guard lock(mutex);
      done[i] = true;
      for (; first_open < done.size() && done[first_open]; ++first_open) filled = std::max(filled, ends[first_open]);
      progress.notify_one();
    };
    const auto work = [&](ThreadPool& pool) {
      if (meanwhile) pool.run([](int) { yield_core(); });  // others may be answering
      pool.parallel_for(tasks.size(), [&](size_t i, int worker) {
        fill(i, worker);
        note_done(i);
      });
    };
    const auto fill_all = [&] {
      ThreadPool pool(std::max(1, hardware_threads() - (meanwhile ? 1 : 0)));  // throws where no thread is to be had
      auto working = std::async(std::launch::async, [&] { work(pool); });
      for (int64_t at = 0, end = 0; at < bytes && failed == tasks.size(); at = end) {
        {
          std::unique_lock lock(mutex);
          progress.wait(lock, [&] { return filled - at >= kCopyBytes || first_open == tasks.size(); });
          end = std::min(first_open == tasks.size() ? bytes : filled, at + kCopyBytes);
        }
        if (failed == tasks.size())
          stream->copy(static_cast<char*>(model->slab_.data()) + at, host.get() + at, static_cast<size_t>(end - at));
      }
      working.get();
      if (failure) std::rethrow_exception(failure);
      stream->synchronize();
      log_debug("{}: weights are on the card", dir.string());
      // To let go of gigabytes takes milliseconds too.
      host.reset();
      model->source_.reset();
      ::malloc_trim(0);  // a server loads again and again, by other threads each time
    };
    auto filling = std::async(meanwhile ? std::launch::async : std::launch::deferred, fill_all);
    if (meanwhile)
      meanwhile(*model, [&] { return filling.wait_for(std::chrono::microseconds(200)) == std::future_status::ready; });
    filling.get();
    return model;
  }
  if (ThreadPool* pool =
          static_cast<device::CpuStream&>(*stream).pool()) {  // the plan counts a matrix for each of its threads
    pool->parallel_for(tasks.size(), fill);
  } else {
    for (size_t i = 0; i < tasks.size(); ++i) fill(i, 0);
  }
  if (failure) std::rethrow_exception(failure);
  model->layout_ = target;
  ::malloc_trim(0);  // the limit is for the whole process, and what packing took is needed no more
  if (tables_in_slab) model->source_.reset();
  return model;
}

void Model::park(device::Device& device) {
  parked_ = device.allocate_host(static_cast<size_t>(layout_.bytes));
  const auto stream = device.make_stream();
  stream->copy(parked_.data(), slab_.data(), static_cast<size_t>(layout_.bytes));
  stream->synchronize();
  slab_ = {};
}

void Model::unpark(device::Device& device, memory::PlannedMemory* planned) {
  ScopedZone zone(Zone::load_model);
  slab_ = memory::Ledger::allocate(device, planned, memory::Tag::weights, "model", layout_.bytes);
  const auto stream = device.make_stream();
  stream->copy(slab_.data(), parked_.data(), static_cast<size_t>(layout_.bytes));
  stream->synchronize();
  parked_ = {};
  const Params before = layout_.params;
  layout_ = layout_weights(shape_, precision_, device_kind_, device::best_isa(), source_ == nullptr, slab_.data());
  if (source_ == nullptr) return;
  const auto specs = model_params(shape_);
  for (size_t i = 0; i < specs.size(); ++i)
    if (specs[i].kind == ParamKind::embedding) layout_.params[i] = before[i];  // where the file is mapped
}

}  // namespace brim::model
