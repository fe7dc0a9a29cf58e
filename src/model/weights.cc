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
#include <mutex>
#include <span>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "base/timeline.h"
#include "memory/ledger.h"
#include "memory/placement.h"
#include "model/fp8.h"
#include "model/stored_param.h"
#include "model/weight_layout.h"
#include "ops/amax.h"

namespace brim::model {

using device::DeviceKind;
using hub::WeightSource;
using ops::Precision;
using tensor::DType;
using tensor::TensorView;

namespace {

void fill_fp8_scale(const WeightSource& source, const std::vector<ParamSpec>& params, const InputBound& input,
                    const Fp8Scale& scale) {
  const auto read = [&](int64_t index, size_t size) {
    if (params[static_cast<size_t>(index)].rows == 0) return std::vector<float>(size);  // no bias
    const auto stored = StoredParam::find(source, params[static_cast<size_t>(index)]);
    std::vector<float> wide(static_cast<size_t>(stored->elements()));
    stored->read_wide(0, stored->elements(), wide.data());
    return wide;
  };
  const std::vector<float> gamma = read(input.gamma, 0), beta = read(input.beta, gamma.size());
  float bound = 0;
  if (input.kind == InputBound::Kind::norm) {
    bound = norm_bound(gamma, beta);
    if (input.other_gamma >= 0)
      bound = std::max(bound, norm_bound(read(input.other_gamma, 0), read(input.other_beta, gamma.size())));
  } else {
    const std::vector<float> w = read(input.w, 0), b = read(input.b, w.size() / gamma.size());
    const auto row = static_cast<size_t>(input.first_row);
    bound = product_bound(std::span(w).subspan(row * gamma.size()), std::span(b).subspan(row), gamma, beta);
  }
  *scale.quantise.as<float>() = bound > 0 ? ops::kFp8Largest / bound : 1.0f;
  *scale.dequantise.as<float>() = bound > 0 ? bound / ops::kFp8Largest : 1.0f;
}

}  // namespace

DType activation_type(Precision precision, DeviceKind target) {
  if (target == DeviceKind::cpu) return DType::f32;
  switch (precision) {
    case Precision::fp16:
    case Precision::int8:  // supported by every GPU with int8, and more precise than bf16
      return DType::f16;
    case Precision::bf16:
    case Precision::fp8:
      return DType::bf16;
    default:
      return DType::f32;
  }
}

Precision head_precision(Precision precision, DeviceKind target) {
  if (target == DeviceKind::cpu) return Precision::fp32;
  return precision == Precision::fp8 ? Precision::bf16 : precision == Precision::int8 ? Precision::fp16 : precision;
}

WeightLayout layout_weights(const ModelShape& s, Precision precision, DeviceKind target, device::Isa isa,
                            const TableTypes& tables, void* base) {
  Cutter slab(base);
  const DType activation = activation_type(precision, target);
  size_t table = 0;
  const auto next_table_type = [&] {
    if (tables.empty()) return target == DeviceKind::cpu ? DType::f16 : activation;
    BRIM_CHECK(table < tables.size(), "types given for {} tables, the model has more", tables.size());
    return tables[table++];
  };
  auto matrix = [&](int64_t N, int64_t K, MatrixFormat format) { return slab.cut_matrix(N, K, format, target, isa); };
  WeightLayout layout;
  for (const ParamSpec& spec : model_params(s)) {
    Param& p = layout.params.emplace_back();
    p.lora = spec.lora;
    if (spec.rows == 0) continue;
    if (spec.kind == ParamKind::embedding) {
      p.plain = slab.cut(next_table_type(), {spec.rows, spec.cols});
    } else if (spec.kind != ParamKind::matrix) {
      p.plain = spec.cols > 0 ? slab.cut(activation, {spec.rows, spec.cols}) : slab.cut(activation, {spec.rows});
    } else {
      const MatrixFormat format = matrix_format(spec, s, precision, target, isa);
      if (spec.whole_scored) p.matrix = matrix(spec.rows, spec.cols, format);
      if (spec.split > 0) {
        p.first = matrix(spec.split, spec.cols, format);
        p.rest = matrix(spec.rows - spec.split, spec.cols, format);
      }
      if (format.precision == Precision::fp8) {
        p.input.quantise = slab.cut(DType::f32, {1});
        p.input.dequantise = slab.cut(DType::f32, {1});
      }
    }
  }
  layout.bytes = slab.used();
  return layout;
}

Params describe_weights(const ModelShape& shape, Precision precision, DeviceKind target, device::Isa isa) {
  Params params = layout_weights(shape, precision, target, isa, {}, nullptr).params;
  if (shape.adapter_width > 0) describe_adapter(shape, precision, target, isa, params);
  return params;
}

namespace {

StoredParam require_param(const WeightSource& source, const ParamSpec& spec) {
  auto stored = StoredParam::find(source, spec);
  if (!stored)
    fail(ErrorCode::bad_model, "{}: no tensor {}: the classification head is missing", source.where(), spec.names[0]);
  return *std::move(stored);
}

}  // namespace

ModelShape read_shape(const hub::ModelFiles& files, hub::HfConfig* out) {
  hub::OpenModel model = hub::open_model(files);
  const ModelShape shape = shape_of(model.config, head_kind(model.config, model.weights->names()));
  if (out != nullptr) *out = std::move(model.config);
  return shape;
}

void check_params(const WeightSource& source, const ModelShape& shape, bool with_head) {
  for (const ParamSpec& spec : model_params(shape))
    if (spec.rows > 0 && (with_head || !spec.head)) (void)require_param(source, spec);
}

void check_vocabulary(const std::filesystem::path& dir, const ModelShape& shape, int64_t tokenizer_ids) {
  if (tokenizer_ids > shape.vocab)
    fail(ErrorCode::bad_model,
         "{}: the tokenizer's largest id is {}, the embedding table has {} rows (config.json vocab_size)", dir.string(),
         tokenizer_ids - 1, shape.vocab);
}

ModelShape both_heads(const ModelShape& classifier, const ModelShape& tagger) {
  ModelShape both = classifier;
  both.token_classes = tagger.token_classes;
  return both;
}

namespace {

bool same_bytes(const WeightSource& a, const WeightSource& b, const std::string& name) {
  const std::string name_a = stored_name(a, name), name_b = stored_name(b, name);
  if (!a.has(name_a) || !b.has(name_b)) return false;
  const hub::StoredTensor &x = a.require(name_a), &y = b.require(name_b);
  if (x.dtype != y.dtype || x.elements != y.elements) return false;
  constexpr int64_t kPiece = int64_t{1} << 16;
  const auto width = static_cast<size_t>(dtype_bytes(*x.dtype));
  std::vector<std::byte> left(static_cast<size_t>(std::min(kPiece, x.elements)) * width), right(left.size());
  for (int64_t at = 0; at < x.elements; at += kPiece) {
    const int64_t end = std::min(at + kPiece, x.elements);
    a.read(name_a, at, end, left.data());
    b.read(name_b, at, end, right.data());
    if (std::memcmp(left.data(), right.data(), static_cast<size_t>(end - at) * width) != 0) return false;
  }
  return true;
}

}  // namespace

bool same_encoder(const std::filesystem::path& classifier, const std::filesystem::path& tagger) {
  const ModelShape a = read_shape(classifier);
  ModelShape b = read_shape(tagger);
  if (a.sequence_classes == 0 || b.token_classes == 0 || a.mean_pooling) return false;
  const auto without_heads = [](ModelShape s) {
    s.sequence_classes = s.token_classes = 0;
    s.multi_label = s.regression = s.raw_scores = false;
    s.hidden_dropout = s.attention_dropout = s.head_dropout = s.feed_forward_dropout = s.pooler_dropout = 0;
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
      if (!same_bytes(*source, *other, name)) return false;
      const bool int8 = source->require(stored_name(*source, name)).dtype == DType::i8;
      if (int8 && !same_bytes(*source, *other, name + "_scale")) return false;
    }
  }
  return true;
}

bool read_param(const WeightSource& source, const ModelShape&, const ParamSpec& spec, float* out) {
  const auto stored = StoredParam::find(source, spec);
  if (!stored) return false;
  stored->read_wide(0, stored->elements(), out);
  return true;
}

TableTypes table_types(const WeightSource& source, const ModelShape& s, DeviceKind target) {
  TableTypes types;
  if (target != DeviceKind::cpu) return types;
  for (const ParamSpec& spec : model_params(s)) {
    if (spec.kind != ParamKind::embedding || spec.rows == 0) continue;
    const hub::StoredTensor* stored = source.describe(stored_name(source, spec.names[0]));
    const DType type = stored == nullptr ? DType::f32 : stored->dtype.value_or(DType::f32);
    if (spec.int8 && type == DType::i8) return {};
    types.push_back(type == DType::f16 || type == DType::bf16 ? type : DType::f32);
  }
  return types;
}

TableTypes table_types(const ModelShape& s, DeviceKind target) {
  TableTypes types;
  if (target != DeviceKind::cpu) return types;
  for (const ParamSpec& spec : model_params(s))
    if (spec.kind == ParamKind::embedding && spec.rows > 0) types.push_back(DType::f32);
  return types;
}

int64_t load_bytes(const ModelShape& s, int threads) {
  int64_t largest = 0;
  for (const ParamSpec& spec : model_params(s))
    if (spec.kind == ParamKind::matrix) largest = std::max(largest, spec.elements());
  return threads * 4 * largest;
}

namespace {

// End offset of a parameter's bytes, relative to `base`.
int64_t end_in(const std::byte* base, const Param& p) {
  int64_t end = 0;
  for (const TensorView& v : {p.plain, p.matrix.data, p.matrix.scale, p.first.data, p.first.scale, p.rest.data,
                              p.rest.scale, p.input.quantise, p.input.dequantise})
    if (v) end = std::max(end, static_cast<const std::byte*>(v.data) - base + v.bytes());
  return end;
}

// The files of a model, and of a tagger whose head is added to it.
struct Sources {
  std::unique_ptr<WeightSource> model, tagger;
  std::vector<ParamSpec> params, tagger_params;  // indices do not depend on the heads

  StoredParam find(size_t index) const {
    const bool of_tagger = params[index].head && tagger != nullptr && tagger_params[index].rows > 0;
    return require_param(of_tagger ? *tagger : *model, of_tagger ? tagger_params[index] : params[index]);
  }
  void check_unchanged() const {
    model->check_unchanged();
    if (tagger) tagger->check_unchanged();
  }
};

// Fills the parameters of a layout from the files: one task per parameter, several per table, for disjoint pieces.
// Reports the first failure in parameter order, independent of thread timing.
class FillTasks {
 public:
  // `base`: start of the layout, for end(); null if not needed.
  FillTasks(const Sources& sources, WeightLayout& target, DeviceKind kind, const std::byte* base)
      : sources_(sources), kind_(kind) {
    for (size_t i = 0; i < sources.params.size(); ++i) {
      if (sources.params[i].rows == 0) continue;
      Param& p = target.params[i];
      if (sources.params[i].kind == ParamKind::embedding)
        add_table(i, p);
      else
        add_param(i, p);
      ends_.resize(tasks_.size());
      if (base != nullptr) ends_.back() = end_in(base, p);
    }
    failed_ = tasks_.size();
  }

  size_t size() const { return tasks_.size(); }
  int64_t end(size_t i) const { return ends_[i]; }  // offset up to which everything is filled after tasks [0, i]
  bool has_failed() const { return failed_ < tasks_.size(); }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  void make_buffers(int workers, int64_t bytes) {
    for (int i = 0; i < workers; ++i) buffers_.emplace_back(bytes);
  }
  void free_buffers() { buffers_.clear(); }
  void run(size_t i, int worker) {
    if (i > failed_) return;
    try {
      tasks_[i](buffers_[static_cast<size_t>(worker)]);
    } catch (...) {
      std::lock_guard lock(failing_);
      if (i > failed_) return;
      failed_ = i;
      failure_ = std::current_exception();
    }
  }

 private:
  void add_table(size_t index, Param& p) {
    constexpr int64_t kTableElements = int64_t{1} << 20;  // per task
    const int64_t elements = sources_.params[index].elements(), pieces = elements / kTableElements + 1;
    for (int64_t n = 0; n < pieces; ++n)
      tasks_.push_back([this, index, &p, elements, pieces, n](MatrixBuffer&) {
        const int64_t begin = elements * n / pieces, end = elements * (n + 1) / pieces;
        auto* out = static_cast<char*>(p.plain.data) + begin * dtype_bytes(p.plain.dtype);
        sources_.find(index).read_as(begin, end, out, p.plain.dtype);
      });
  }
  void add_param(size_t index, Param& p) {
    const ParamSpec& spec = sources_.params[index];
    tasks_.push_back([this, index, &spec, &p](MatrixBuffer& buffer) {
      const StoredParam stored = sources_.find(index);
      if (p.plain) stored.read_as(0, stored.elements(), p.plain.data, p.plain.dtype);
      if (p.matrix.N > 0) fill_matrix(stored, 0, p.matrix, kind_, buffer);
      if (p.first.N > 0) {
        fill_matrix(stored, 0, p.first, kind_, buffer);
        fill_matrix(stored, spec.split, p.rest, kind_, buffer);
      }
    });
    if (p.input.quantise)
      tasks_.push_back(
          [this, &spec, &p](MatrixBuffer&) { fill_fp8_scale(*sources_.model, sources_.params, spec.input, p.input); });
  }

  const Sources& sources_;
  const DeviceKind kind_;
  std::vector<std::function<void(MatrixBuffer&)>> tasks_;
  std::vector<int64_t> ends_;
  std::mutex failing_;
  std::atomic<size_t> failed_{0};
  std::exception_ptr failure_;
  std::vector<MatrixBuffer> buffers_;  // one per worker
};

// Copies finished pieces of `host` to the device while the rest is being filled; small pieces let other threads launch
// batches in between.
class Uploader {
 public:
  Uploader(FillTasks& tasks, device::Stream& stream, const std::byte* host, void* slab, int64_t bytes)
      : tasks_(tasks), stream_(stream), host_(host), slab_(static_cast<char*>(slab)), bytes_(bytes) {}

  // `yields`: other threads may be serving requests.
  void run(ThreadPool& pool, bool yields) {
    auto working = std::async(std::launch::async, [&] {
      if (yields) pool.run([](int) { yield_core(); });
      pool.parallel_for(tasks_.size(), [&](size_t i, int worker) {
        tasks_.run(i, worker);
        note_done(i);
      });
    });
    for (int64_t at = 0, end = 0; at < bytes_ && !tasks_.has_failed(); at = end) {
      end = wait_for_piece(at);
      if (!tasks_.has_failed()) stream_.copy(slab_ + at, host_ + at, static_cast<size_t>(end - at));
    }
    working.get();
  }

 private:
  static constexpr int64_t kCopyBytes = int64_t{4} << 20;

  void note_done(size_t i) {
    std::lock_guard lock(mutex_);
    done_[i] = true;
    for (; first_open_ < done_.size() && done_[first_open_]; ++first_open_)
      filled_ = std::max(filled_, tasks_.end(first_open_));
    progress_.notify_one();
  }
  int64_t wait_for_piece(int64_t at) {
    std::unique_lock lock(mutex_);
    progress_.wait(lock, [&] { return filled_ - at >= kCopyBytes || first_open_ == done_.size(); });
    return std::min(first_open_ == done_.size() ? bytes_ : filled_, at + kCopyBytes);
  }

  FillTasks& tasks_;
  device::Stream& stream_;
  const std::byte* const host_;
  char* const slab_;
  const int64_t bytes_;
  std::mutex mutex_;
  std::condition_variable progress_;
  std::vector<bool> done_ = std::vector<bool>(tasks_.size());
  size_t first_open_ = 0;
  int64_t filled_ = 0;
};

void fill_in_place(FillTasks& tasks, device::Stream& stream, int64_t buffer_bytes) {
  ThreadPool* pool = static_cast<device::CpuStream&>(stream).pool();
  tasks.make_buffers(pool == nullptr ? 1 : pool->size(), buffer_bytes);
  if (pool != nullptr) {
    pool->parallel_for(tasks.size(), [&](size_t i, int worker) { tasks.run(i, worker); });
  } else {
    for (size_t i = 0; i < tasks.size(); ++i) tasks.run(i, 0);
  }
  tasks.rethrow();
  tasks.free_buffers();
}

// The files of both models; adds the tagger's head to `shape`.
Sources open_sources(const hub::ModelFiles& files, const std::filesystem::path& tagger, hub::HfConfig& config,
                     ModelShape& shape) {
  Sources sources;
  hub::OpenModel model = hub::open_model(files);
  sources.model = std::move(model.weights);
  config = std::move(model.config);
  shape = shape_of(config, head_kind(config, sources.model->names()));
  if (!tagger.empty()) {
    const ModelShape tags = read_shape(tagger);
    sources.tagger = WeightSource::open(tagger);
    sources.tagger_params = model_params(tags);
    shape = both_heads(shape, tags);
  }
  sources.params = model_params(shape);
  return sources;
}

}  // namespace

std::unique_ptr<Model> Model::load(const hub::ModelFiles& files, device::Device& device, Precision precision,
                                   memory::PlannedMemory* planned) {
  return load_both(files, {}, device, precision, planned);
}

std::unique_ptr<Model> Model::load_both(const hub::ModelFiles& files, const std::filesystem::path& tagger,
                                        device::Device& device, Precision precision, memory::PlannedMemory* planned,
                                        const OnProgress& while_loading, bool encoder_only) {
  ScopedZone zone(Zone::load_model);
  auto model = std::unique_ptr<Model>(new Model);
  model->dir_ = files.dir;
  Sources sources = open_sources(files, tagger, model->config_, model->shape_);
  if (encoder_only) {
    model->shape_.sequence_classes = model->shape_.token_classes = 0;
    model->shape_.shares_weights = true;
    sources.params = model_params(model->shape_);
  }
  model->precision_ = precision;
  model->device_kind_ = device.kind();
  const ModelShape& s = model->shape_;
  model->table_types_ = table_types(*sources.model, s, device.kind());
  const auto layout_at = [&](void* base) {
    return layout_weights(s, precision, device.kind(), device::best_isa(), model->table_types_, base);
  };
  const int64_t bytes = layout_at(nullptr).bytes, buffer_bytes = load_bytes(s, 1);
  model->slab_ = memory::Ledger::allocate(device, planned, memory::Tag::weights, "model", bytes);
  model->layout_ = layout_at(model->slab_.data());
  const auto stream = device.make_stream();
  if (device.kind() == DeviceKind::cpu) {
    FillTasks tasks(sources, model->layout_, device.kind(), nullptr);
    fill_in_place(tasks, *stream, buffer_bytes);
    sources.check_unchanged();
    ::malloc_trim(0);  // the limit covers the whole process
    return model;
  }
  // The host cannot write to the slab: fill a host buffer and copy it.
  std::unique_ptr<std::byte[]> host(new std::byte[static_cast<size_t>(bytes)]);
  WeightLayout target = layout_at(host.get());
  FillTasks tasks(sources, target, device.kind(), host.get());
  const auto fill_all = [&] {
    const bool yields = while_loading != nullptr;
    ThreadPool pool(std::max(1, hardware_threads() - (yields ? 1 : 0)));  // throws if no thread can be started
    tasks.make_buffers(pool.size(), buffer_bytes);
    Uploader(tasks, *stream, host.get(), model->slab_.data(), bytes).run(pool, yields);
    tasks.rethrow();
    sources.check_unchanged();
    stream->synchronize();
    log_debug("{}: weights copied to the device", files.text());
    // Freeing gigabytes takes milliseconds.
    host.reset();
    tasks.free_buffers();
    sources.model.reset();
    ::malloc_trim(0);  // a server loads repeatedly, each time on other threads
  };
  auto filling = std::async(while_loading ? std::launch::async : std::launch::deferred, fill_all);
  if (while_loading)
    while_loading(*model,
                  [&] { return filling.wait_for(std::chrono::microseconds(200)) == std::future_status::ready; });
  filling.get();
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
  layout_ = layout_weights(shape_, precision_, device_kind_, device::best_isa(), table_types_, slab_.data());
}

}  // namespace brim::model
