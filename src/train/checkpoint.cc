// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "hub/adapter.h"
#include "hub/safetensors.h"
#include "hub/weights.h"
#include "io/atomic_file.h"
#include "io/sync_directory.h"
#include "model/lora.h"
#include "model/weights.h"
#include "train/fingerprint.h"

namespace brim::train {
namespace {

namespace fs = std::filesystem;
constexpr const char* kState = "trainer_state.json";
constexpr const char* kMoments = "optimizer.bin";
constexpr int kCheckpointVersion = 1;  // files without a version field are version 1

uint32_t checksum(const fs::path& path) {
  const MappedFile file(path);
  uLong crc = crc32(0, nullptr, 0);
  constexpr size_t kPiece = size_t{1} << 20;
  for (size_t at = 0; at < file.size(); at += kPiece) {
    crc = crc32(crc, reinterpret_cast<const Bytef*>(file.data() + at),
                static_cast<uInt>(std::min(file.size() - at, kPiece)));
    file.release(at, kPiece);
  }
  return static_cast<uint32_t>(crc);
}

void make_directory(const fs::path& dir) {
  std::error_code ec;
  fs::create_directories(dir, ec);
  if (ec) fail(ErrorCode::cannot_write, "{}: {}", dir.string(), ec.message());
}

int64_t step_of(const fs::path& dir) {
  const std::string name = dir.filename().string();
  int64_t step = -1;
  if (name.rfind("checkpoint-", 0) != 0) return -1;
  const auto [end, error] = std::from_chars(name.data() + 11, name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() ? step : -1;
}

// Newest first.
std::vector<fs::path> checkpoints_in(const fs::path& dir) {
  std::vector<fs::path> found;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(dir, ec))
    if (entry.is_directory() && step_of(entry.path()) >= 0) found.push_back(entry.path());
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) { return step_of(a) > step_of(b); });
  return found;
}

uint32_t checksum(const std::string& text) {
  return static_cast<uint32_t>(
      crc32(crc32(0, nullptr, 0), reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
}

// Offset of each parameter's moments, in elements; the moments file itself stores no names.
nlohmann::ordered_json moment_offsets(const model::SlabLayout& layout) {
  auto places = nlohmann::ordered_json::object();
  for (size_t i = 0; i < layout.params.size(); ++i)
    if (layout.params[i].rows > 0) places[layout.params[i].names[0]] = layout.offset[i];
  return places;
}

// Checkpoints of earlier versions have no offsets; their order is the current one.
std::string fault_of_offsets(const fs::path& dir, const nlohmann::ordered_json& then, const model::SlabLayout& layout) {
  const auto now = moment_offsets(layout);
  for (const auto& [name, offset] : now.items())
    if (!then.contains(name) || then[name] != offset)
      return fmt::format("{}: offset of the moments of {} is {}, expected {}", (dir / kMoments).string(), name,
                         then.contains(name) ? then[name].dump() : "missing", offset.dump());
  return "";
}

// Name of a parameter's k-th tensor in the files that this run writes.
std::string stored_as(const model::ModelShape& shape, const model::ParamSpec& p, size_t k) {
  return shape.lora ? hub::kAdapterPrefix + p.names[k] : p.names[k];
}

// Calls fn(parameter, number of its tensor, rows, first element) for each tensor of the trained files.
template <class Fn>
void for_each_tensor(const model::ModelShape& shape, const model::SlabLayout& layout, Fn&& fn) {
  for (size_t i = 0; i < layout.params.size(); ++i) {
    const model::ParamSpec& p = layout.params[i];
    if (shape.lora && p.frozen) continue;
    const int64_t rows = p.rows / static_cast<int64_t>(p.names.size()), cols = p.cols > 0 ? p.cols : 1;
    for (size_t k = 0; k < p.names.size() && p.rows > 0; ++k)
      fn(p, k, rows, layout.offset[i] + static_cast<int64_t>(k) * rows * cols);
  }
}

// The trained parameters of a checkpoint, which are the first in slab order.
void read_adapter(const fs::path& dir, const model::ModelShape& shape, std::vector<float>& trained) {
  const auto source = hub::WeightSource::open_file(dir / hub::kAdapterWeights);
  const model::SlabLayout layout = slab_layout(shape);
  trained.assign(static_cast<size_t>(layout.trained()), 0.0f);
  for_each_tensor(shape, layout, [&](const model::ParamSpec& p, size_t k, int64_t rows, int64_t at) {
    const std::string name = stored_as(shape, p, k);
    const int64_t count = rows * std::max<int64_t>(1, p.cols);
    const hub::StoredTensor& t = source->require(name);
    if (t.elements != count || t.dtype != tensor::DType::f32)
      fail(ErrorCode::bad_model, "{}: has {} elements, expected {} f32", source->where(name), t.elements, count);
    source->read(name, 0, count, trained.data() + at);
  });
}

LoadedCheckpoint parse_checkpoint(const fs::path& dir, const model::ModelShape& shape, const std::string& settings) {
  auto state = nlohmann::ordered_json::parse(read_file(dir / kState));
  if (!state.is_object() || !state.contains("brim"))
    fail(ErrorCode::bad_model, "{}: not a Brim checkpoint", (dir / kState).string());
  const auto b = state["brim"];
  if (const int version = b.value("version", 1); version > kCheckpointVersion)
    fail(ErrorCode::bad_model,
         "{}: unsupported version {} (the latest supported is {}); resume with the version of Brim that wrote it",
         (dir / kState).string(), version, kCheckpointVersion);
  state.erase("brim");
  if (checksum(state.dump()) != b.at("state_crc32").get<uint32_t>())
    fail(ErrorCode::bad_model, "{}: damaged (checksum mismatch)", (dir / kState).string());
  for (const auto& [name, file] : b.at("files").items()) {
    const fs::path path = dir / name;
    std::error_code ec;
    const auto size = fs::file_size(path, ec);
    if (ec || size != file.at("bytes").get<uint64_t>()) fail(ErrorCode::bad_model, "{}: truncated", path.string());
    if (checksum(path) != file.at("crc32").get<uint32_t>())
      fail(ErrorCode::bad_model, "{}: damaged (checksum mismatch)", path.string());
  }
  LoadedCheckpoint c;
  c.dir = dir;
  TrainProgress& p = c.progress;
  p.step = state.at("global_step").get<int64_t>();
  p.skipped_steps = b.at("skipped_steps");
  p.loss_scale = b.at("loss_scale");
  p.good_steps = b.at("good_steps");
  p.best_metric = b.at("best_metric");
  p.best_step = b.at("best_step");
  p.evaluations_since_best = b.at("evaluations_since_best");
  p.seconds = b.value("train_seconds", 0.0);
  p.settings = b.at("settings").dump();
  p.state_json = state.dump();
  p.plan_json = b.at("plan").dump();
  // With other settings, the tensors may have other names and shapes.
  if (!settings.empty()) c.differs = fingerprint_difference(p.settings, settings);
  if (!c.differs.empty()) return c;
  if (b.contains("places")) c.fault = fault_of_offsets(dir, b["places"], slab_layout(shape));
  if (shape.lora) {
    read_adapter(dir, shape, c.master);
  } else {
    const auto source = hub::WeightSource::open(dir);
    const auto drawn = load_master(*source, shape, 0, 0, c.master);
    if (!drawn.empty()) fail(ErrorCode::bad_model, "{}: no tensor {}", source->where(), drawn[0]);
  }
  c.moments = MappedFile(dir / kMoments);
  return c;
}

LoadedCheckpoint read_checkpoint(const fs::path& dir, const model::ModelShape& shape, const std::string& settings) {
  try {
    return parse_checkpoint(dir, shape, settings);
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::bad_model, "{}: truncated or not a checkpoint", (dir / kState).string());
  }
}

}  // namespace

const char* weights_file(const model::ModelShape& shape) {
  return shape.lora ? hub::kAdapterWeights : "model.safetensors";
}

void write_model(const fs::path& dir, const ModelFiles& files, const model::SlabLayout& layout,
                 std::span<const float> master) {
  make_directory(dir);
  std::map<std::string, tensor::TensorView> tensors;
  for_each_tensor(files.shape, layout, [&](const model::ParamSpec& p, size_t k, int64_t rows, int64_t at) {
    auto* data = const_cast<float*>(master.data()) + at;
    using tensor::DType, tensor::TensorView;
    tensors[stored_as(files.shape, p, k)] = p.inner > 0
                                                ? TensorView(data, DType::f32, {rows, p.cols / p.inner, p.inner})
                                            : p.cols > 0 ? TensorView(data, DType::f32, {rows, p.cols})
                                                         : TensorView(data, DType::f32, {rows});
  });
  hub::write_safetensors(dir / weights_file(files.shape), tensors);
  if (files.shape.lora)
    write_adapter_config(dir, files.shape.lora,
                         {files.base, files.shape.sequence_classes == 0, saved_modules(files.shape)});
  hub::ConfigUpdate update;
  update.labels = files.labels;
  update.head = files.shape.sequence_classes > 0 ? hub::HeadKind::sequence : hub::HeadKind::token;
  update.num_layers = static_cast<int>(files.shape.layers);
  if (files.shape.sequence_classes > 0)
    update.problem_type = files.shape.regression    ? "regression"
                          : files.shape.multi_label ? "multi_label_classification"
                                                    : "single_label_classification";
  update.torch_dtype = "float32";
  update.quantization = hub::ConfigUpdate::Quantization::remove;
  write_config(*files.config, update, dir);
  hub::copy_tokenizer_files(files.tokenizer_dir, dir);
}

void write_trained(const fs::path& dir, const ModelFiles& files, const model::SlabLayout& layout,
                   std::span<const float> master) {
  write_model(dir, files, layout, master);
  if (files.shape.sequence_classes == 0 || files.shape.token_classes == 0) return;
  ModelFiles tagger = files;
  tagger.labels = files.tags;
  tagger.shape.sequence_classes = 0;
  tagger.shape.multi_label = false;
  model::SlabLayout to = slab_layout(tagger.shape);  // the same parameters; those of the other head have no elements
  to.offset = layout.offset;
  write_model(dir / kTagger, tagger, to, master);
}

namespace {

// Returns an empty path if this fails too.
fs::path write_to_temporary(const ModelFiles& files, const model::SlabLayout& layout, std::span<const float> master) {
  std::error_code ec;
  std::string dir = (fs::temp_directory_path(ec) / "brim-model-XXXXXX").string();
  if (ec || ::mkdtemp(dir.data()) == nullptr) return {};
  try {
    write_trained(dir, files, layout, master);
  } catch (const Error&) {
    fs::remove_all(dir, ec);
    return {};
  }
  return dir;
}

}  // namespace

void write_trained_or_rescue(const fs::path& dir, const ModelFiles& files, const model::SlabLayout& layout,
                             std::span<const float> master) {
  try {
    write_trained(dir, files, layout, master);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::cannot_write) throw;
    if (const fs::path rescued = write_to_temporary(files, layout, master); !rescued.empty())
      fail(ErrorCode::cannot_write, Remedy{fmt::format("free some space, then move it to {}", dir.string())},
           "{}; the trained model was saved in {}", e.problem(), rescued.string());
    const auto checkpoints = checkpoints_in(dir);
    if (checkpoints.empty()) throw;
    fail(ErrorCode::cannot_write, Remedy{"free some space, then continue with `resume_from_checkpoint=last`"},
         "{}; the newest checkpoint is {}", e.problem(), checkpoints[0].string());
  }
}

void write_checkpoint(const fs::path& output_dir, const ModelFiles& files, const model::SlabLayout& layout,
                      std::span<const float> master, std::span<const std::span<const std::byte>> moments,
                      const TrainProgress& p, int64_t keep) {
  const fs::path final = output_dir / fmt::format("checkpoint-{}", p.step),
                 part = output_dir / fmt::format("checkpoint-{}.part", p.step);
  std::error_code ec;
  fs::remove_all(part, ec);
  try {
    write_model(part, files, layout, master);
    {
      io::AtomicFile file(part / kMoments);
      for (const auto part_of_them : moments) file.write(part_of_them.data(), part_of_them.size());
      file.commit();
    }
    nlohmann::ordered_json listed;
    for (const char* name : {weights_file(files.shape), kMoments, "config.json"})
      listed[name] = {{"bytes", fs::file_size(part / name)}, {"crc32", checksum(part / name)}};
    auto state = nlohmann::ordered_json::parse(p.state_json);
    const uint32_t crc = checksum(state.dump());
    state["brim"] = {{"version", kCheckpointVersion},
                     {"skipped_steps", p.skipped_steps},
                     {"loss_scale", p.loss_scale},
                     {"good_steps", p.good_steps},
                     {"best_metric", p.best_metric},
                     {"best_step", p.best_step},
                     {"evaluations_since_best", p.evaluations_since_best},
                     {"train_seconds", p.seconds},
                     {"settings", nlohmann::ordered_json::parse(p.settings)},
                     {"plan", nlohmann::ordered_json::parse(p.plan_json)},
                     {"places", moment_offsets(layout)},
                     {"files", listed},
                     {"state_crc32", crc}};
    io::write_file_atomically(part / kState, state.dump(2) + "\n");
  } catch (...) {
    fs::remove_all(part, ec);
    throw;
  }
  fs::remove_all(final, ec);
  fs::rename(part, final, ec);
  if (ec) fail(ErrorCode::cannot_write, "{}: {}", final.string(), ec.message());
  io::sync_directory(output_dir);
  // Keep this checkpoint regardless of its number: damaged ones with a higher step may exist.
  auto others = checkpoints_in(output_dir);
  std::erase(others, final);
  for (size_t i = static_cast<size_t>(std::max<int64_t>(0, keep - 1)); keep > 0 && i < others.size(); ++i)
    fs::remove_all(others[i], ec);
}

int64_t count_checkpoints(const fs::path& output_dir) {
  return static_cast<int64_t>(checkpoints_in(output_dir).size());
}

void remove_checkpoints(const fs::path& output_dir) {
  std::error_code ec;
  for (const auto& dir : checkpoints_in(output_dir)) fs::remove_all(dir, ec);
}

bool copy_model(const fs::path& from, const fs::path& to) {
  std::error_code ec;
  const bool adapter = hub::is_adapter(from);
  std::vector<const char*> names = {adapter ? hub::kAdapterWeights : "model.safetensors", "config.json"};
  if (adapter) names.push_back(hub::kAdapterConfig);
  for (const char* name : names)
    if (!fs::exists(from / name, ec)) return false;
  for (const char* name : names) {
    const MappedFile source(from / name);
    io::AtomicFile file(to / name);
    file.write(source.data(), source.size());
    file.commit();
  }
  hub::copy_tokenizer_files(from, to);
  if (!fs::exists(from / kTagger, ec)) return true;
  make_directory(to / kTagger);
  return copy_model(from / kTagger, to / kTagger);
}

void remove_parts(const fs::path& output_dir) {
  std::error_code ec;
  std::vector<fs::path> parts;
  for (const auto& entry : fs::directory_iterator(output_dir, ec)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name.rfind("checkpoint-", 0) == 0 && name.ends_with(".part"))
      parts.push_back(entry.path());
  }
  for (const auto& part : parts) fs::remove_all(part, ec);
}

std::optional<LoadedCheckpoint> load_checkpoint(const fs::path& output_dir, const std::string& which,
                                                const model::ModelShape& shape, const std::string& settings) {
  const auto found = checkpoints_in(which == "last" ? output_dir : fs::path(which));
  if (which != "last") {
    std::error_code ec;
    if (!fs::is_directory(which, ec))
      fail(
          ErrorCode::usage,
          Remedy{fmt::format("set `resume_from_checkpoint=last` for the newest checkpoint in {}", output_dir.string())},
          "`resume_from_checkpoint={}`: no such directory", which);
    if (!found.empty())
      fail(ErrorCode::usage, Remedy{fmt::format("set a checkpoint in it, such as {}", found[0].string())},
           "`resume_from_checkpoint={}`: is the directory of a run, not a checkpoint", which);
    return read_checkpoint(fs::canonical(which), shape, settings);  // also accepts a trailing slash
  }
  for (const auto& dir : found) {
    try {
      return read_checkpoint(dir, shape, settings);
    } catch (const Error& e) {
      log_warning("{}; {}", e.what(),
                  &dir == &found.back() ? "no other checkpoint found" : "trying the previous checkpoint");
    }
  }
  return std::nullopt;
}

}  // namespace brim::train
