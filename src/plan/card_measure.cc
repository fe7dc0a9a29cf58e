// SPDX-License-Identifier: Apache-2.0
#include "plan/card_measure.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "base/cache_file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/units.h"
#include "device/cuda_info.h"
#include "device/event.h"
#include "device/graph.h"
#include "memory/ledger.h"
#include "model/weights.h"
#include "ops/rows.h"

extern char** environ;

namespace brim::plan {

using device::Device;
using device::Stream;
using ops::Precision;
using tensor::DType;
using tensor::TensorView;

namespace {

constexpr int kVersion = 1;               // format and measurement method of the cached file
constexpr int64_t kLargestMatrix = 8192;  // square; larger ones are no faster on an H200
constexpr size_t kLargestCopy = size_t{1} << 30;

std::filesystem::path& measuring_program() {
  static std::filesystem::path program;
  return program;
}

std::filesystem::path& library_file() {
  static std::filesystem::path file;
  return file;
}

// Identifies the build, because the context size depends on the kernels in it.
std::string build_name() {
  struct stat file {};
  if (::stat(shares_process() ? library_file().c_str() : "/proc/self/exe", &file) != 0) return "unknown";
  return fmt::format("{:x}-{:x}", file.st_size, file.st_mtim.tv_sec);
}

// "580.159.04" if the kernel module reports it; not available in WSL2.
std::string driver_name(const device::CudaInfo& info) {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  return file >> version ? version : std::to_string(info.driver_version);
}

CardKey key_of(const device::CudaInfo& info, Precision precision) {
  return {info.name, driver_name(info), build_name(), info.runtime_version, precision};
}

device::DeviceBuffer measuring_block(Device& device, int64_t bytes) {
  return memory::Ledger::allocate(device, nullptr, memory::Tag::workspace, "measuring", bytes);
}

// Matrices of one measurement, freed with it.
class Matrices {
 public:
  Matrices(Device& device, Stream& stream) : device_(device), stream_(stream) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    pattern_.resize(1 << 16);
    for (float& x : pattern_) x = normal(random);  // zeros would draw less power and run faster than a model does
  }
  TensorView raw(DType type, int64_t rows, int64_t cols) {
    TensorView v(nullptr, type, {rows, cols});
    buffers_.push_back(measuring_block(device_, v.bytes()));
    v.data = buffers_.back().data();
    stream_.fill_zero(v.data, static_cast<size_t>(v.bytes()));
    return v;
  }
  TensorView normal(DType type, int64_t rows, int64_t cols) {
    if (type == DType::f8e4m3) {
      const TensorView wide = normal(DType::bf16, rows, cols), narrow = raw(type, rows, cols);
      ops::convert(stream_, {.x = wide, .y = narrow, .scale = one()});
      return narrow;
    }
    const TensorView v = raw(type, rows, cols);
    std::vector<char> host(pattern_.size() * static_cast<size_t>(dtype_bytes(type)));
    convert_elements(pattern_.data(), DType::f32, host.data(), type, static_cast<int64_t>(pattern_.size()));
    for (size_t at = 0; at < static_cast<size_t>(v.bytes()); at += host.size())
      stream_.copy(static_cast<char*>(v.data) + at, host.data(),
                   std::min(host.size(), static_cast<size_t>(v.bytes()) - at));
    stream_.synchronize();
    return v;
  }
  // int8 codes and the scales of their rows.
  std::pair<TensorView, TensorView> codes(int64_t rows, int64_t cols) {
    const TensorView wide = normal(DType::f16, rows, cols), codes = raw(DType::i8, rows, cols),
                     scale = raw(DType::f32, 1, rows).reshape({rows});
    ops::convert(stream_, {.x = wide, .y = codes, .scale = scale});
    return {codes, scale};
  }
  TensorView one() {
    if (!one_) {
      one_ = raw(DType::f32, 1, 1).reshape({1});
      const float value = 1;
      stream_.copy(one_.data, &value, sizeof value);
      stream_.synchronize();
    }
    return one_;
  }

 private:
  Device& device_;
  Stream& stream_;
  std::vector<float> pattern_;
  std::vector<device::DeviceBuffer> buffers_;
  TensorView one_;
};

// Median of five spans of about 60 ms.
double seconds_of(Device& device, Stream& stream, const std::function<void()>& call) {
  const auto begin = make_event(device, true), end = make_event(device, true);
  const auto span = [&](int runs) {
    begin->record(stream);
    for (int i = 0; i < runs; ++i) call();
    end->record(stream);
    end->synchronize();
    return std::max(1e-9, end->ms_since(*begin) * 1e-3 / runs);
  };
  span(1);
  const int runs = std::clamp(static_cast<int>(0.06 / span(2)), 1, 2000);
  std::vector<double> spans;
  for (int i = 0; i < 5; ++i) spans.push_back(span(runs));
  std::nth_element(spans.begin(), spans.begin() + 2, spans.end());
  return spans[2];
}

// Operands of a forward product.
void set_operands(Matrices& m, ops::LinearArgs& a, Precision precision, int64_t T, int64_t N, int64_t K) {
  a.w = {.N = N, .K = K, .precision = precision};
  if (precision == Precision::int8) {
    std::tie(a.x, a.x_scale) = m.codes(T, K);
    std::tie(a.w.data, a.w.scale) = m.codes(N, K);
    return;
  }
  const DType stored =
      precision == Precision::fp8 ? DType::f8e4m3 : model::activation_type(precision, device::DeviceKind::cuda);
  a.x = m.normal(stored, T, K);
  a.w.data = m.normal(stored, N, K);
  if (precision == Precision::fp8) a.x_scale = a.w.scale = m.one();
}

// One product y = x wᵀ with the epilogue a model uses, and its gradients.
struct TrialProduct {
  ops::LinearArgs forward;
  ops::LinearGradArgs backward;
  std::vector<ops::LinearArgs> fp8_backward;  // T is a multiple of 16

  TrialProduct(Matrices& m, Stream& stream, Precision precision, int64_t T, int64_t N, int64_t K) {
    const DType type = model::activation_type(precision, device::DeviceKind::cuda);
    const DType stored = precision == Precision::fp8 ? DType::f8e4m3 : type;
    set_operands(m, forward, precision, T, N, K);
    forward.y = m.raw(type, T, N);
    forward.scratch = m.raw(DType::u8, 1, ops::kCudaLinearScratchBytes).reshape({ops::kCudaLinearScratchBytes});
    if (precision == Precision::int8) return;  // scores only
    if (precision == Precision::fp8) {
      const auto gradient = [&](ops::LinearRole role, int64_t rows, int64_t cols, int64_t sum, DType to) {
        ops::LinearArgs a = forward;
        a.role = role;
        a.x = m.normal(stored, rows, sum);
        a.w.N = cols;
        a.w.K = sum;
        a.w.data = m.normal(stored, cols, sum);
        a.y = a.residual = m.raw(to, rows, cols);
        fp8_backward.push_back(a);
      };
      gradient(ops::LinearRole::input_gradient, T, K, N, type);
      gradient(ops::LinearRole::weight_gradient, N, K, T, DType::f32);
      return;
    }
    const int64_t scratch = linear_grad_scratch_bytes(stream, T, N, K, precision, 1);
    backward.x = forward.x;
    backward.w_plain = forward.w.data;
    backward.d_y = m.normal(type, T, N);
    backward.d_x = m.raw(type, T, K);
    backward.d_w = m.raw(DType::f32, N, K);
    backward.d_bias = m.raw(DType::f32, 1, N).reshape({N});
    if (scratch > 0) backward.scratch = m.raw(DType::u8, 1, scratch).reshape({scratch});
    backward.precision = precision;
  }
};

// The libraries load a kernel on first use, selected by size. These are encoder sizes, for batches of one text to many.
void load_products(Device& device, Stream& stream, Precision precision, int64_t quarter) {
  for (const auto& [N, K] : {std::pair<int64_t, int64_t>{768, 768}, {3072, 768}, {768, 3072}, {1024, 1024}, {384, 384}})
    for (const int64_t T : {16, 64, 256, 1024, 4096, 16384}) {
      if (16 * (T * (N + K) + N * K) + 2 * ops::kCudaLinearScratchBytes > quarter) continue;
      Matrices matrices(device, stream);
      TrialProduct product(matrices, stream, precision, T, N, K);
      linear(stream, product.forward);
      if (product.backward.d_y) linear_grad(stream, product.backward);
      for (const ops::LinearArgs& gradient : product.fp8_backward) linear(stream, gradient);
      stream.synchronize();
    }
}

double product_rate(Device& device, Stream& stream, Precision precision, int64_t quarter) {
  int64_t n = kLargestMatrix;
  while (n > 256 && 3 * 4 * n * n + ops::kCudaLinearScratchBytes > quarter) n /= 2;
  Matrices m(device, stream);
  ops::LinearArgs a;
  set_operands(m, a, precision, n, n, n);
  a.y = m.raw(model::activation_type(precision, device::DeviceKind::cuda), n, n);
  a.scratch = m.raw(DType::u8, 1, ops::kCudaLinearScratchBytes).reshape({ops::kCudaLinearScratchBytes});
  if (can_capture(stream)) {  // a run uses graphs too
    linear(stream, a);
    stream.synchronize();
    begin_capture(stream);
    linear(stream, a);
    end_capture(stream)->launch(stream);
    stream.synchronize();
  }
  const double nn = static_cast<double>(n);
  return 2 * nn * nn * nn / seconds_of(device, stream, [&] { linear(stream, a); });
}

// A child process with pipes to its stdin and stdout; terminated in the destructor.
class MeasuringChild {
 public:
  explicit MeasuringChild(const std::vector<std::string>& command) {
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) {
      problem_ = std::strerror(errno);
      for (const int fd : {in[0], in[1], out[0], out[1]})
        if (fd >= 0) ::close(fd);
      return;
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    std::vector<std::string> words = command;
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int error = ::posix_spawn(&pid_, command[0].c_str(), &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = out[0];
    if (error != 0) {
      pid_ = 0;
      problem_ = std::strerror(error);
    }
  }
  ~MeasuringChild() {
    for (const int fd : {in_, out_})
      if (fd >= 0) ::close(fd);
    if (pid_ == 0) return;
    if (!problem_.empty()) ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  MeasuringChild(const MeasuringChild&) = delete;
  MeasuringChild& operator=(const MeasuringChild&) = delete;

  // First line printed by the child; nullopt, with a problem, on timeout.
  std::optional<std::string> line(double timeout_s) {
    std::string text;
    const int64_t begun = now_ns();
    while (problem_.empty()) {
      const double left = timeout_s - seconds_since(begun);
      pollfd ready{out_, POLLIN, 0};
      const int n = left > 0 ? ::poll(&ready, 1, static_cast<int>(left * 1e3) + 1) : 0;
      if (n < 0 && errno == EINTR) continue;
      char bytes[4096];
      const ssize_t got = n > 0 ? ::read(out_, bytes, sizeof bytes) : 0;
      if (n <= 0) {
        problem_ = fmt::format("no result after {:g} s", timeout_s);
      } else if (got <= 0) {
        problem_ = "the process exited without output";
      } else {
        text.append(bytes, static_cast<size_t>(got));
        if (const size_t end = text.find('\n'); end != std::string::npos) return text.substr(0, end);
        if (text.size() > 65536) problem_ = "the output is too long";
      }
    }
    return std::nullopt;
  }
  void fail_with(std::string problem) { problem_ = std::move(problem); }
  const std::string& problem() const { return problem_; }

 private:
  pid_t pid_ = 0;
  int in_ = -1, out_ = -1;
  std::string problem_;
};

}  // namespace

std::filesystem::path measurement_path(const CardKey& key) {
  return profile_path(fmt::format("{} driver {} runtime {} build {} {}", key.card, key.driver, key.runtime, key.build,
                                  precision_name(key.precision)));
}

std::optional<CardMeasurement> cached_measurement(const CardKey& key) {
  const auto path = measurement_path(key);
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) return std::nullopt;
  try {
    const auto j = nlohmann::json::parse(read_file(path));
    if (j.at("version") != kVersion) return std::nullopt;
    CardMeasurement m;
    m.tflops = j.at("tflops").get<double>();
    m.bandwidth = j.at("bandwidth").get<double>();
    m.host_bandwidth = j.at("host_bandwidth").get<double>();
    m.context_bytes = j.at("context_bytes").get<int64_t>();
    m.by_free_memory = j.at("context_from").get<std::string>() == "free memory";
    if (m.context_bytes <= 0 || m.tflops < 0 || m.bandwidth < 0 || m.host_bandwidth < 0) return std::nullopt;
    return m;
  } catch (const nlohmann::json::exception& e) {
    log_debug("{}: {}; measuring again", path.string(), e.what());
  } catch (const Error& e) {
    log_debug("{}; measuring again", e.what());
  }
  return std::nullopt;
}

void store_measurement(const CardKey& key, const CardMeasurement& m) {
  const auto path = measurement_path(key);
  const nlohmann::ordered_json j = {{"version", kVersion},
                                    {"card", key.card},
                                    {"driver", key.driver},
                                    {"runtime", key.runtime},
                                    {"build", key.build},
                                    {"precision", precision_name(key.precision)},
                                    {"tflops", m.tflops},
                                    {"bandwidth", m.bandwidth},
                                    {"host_bandwidth", m.host_bandwidth},
                                    {"context_bytes", m.context_bytes},
                                    {"context_from", m.by_free_memory ? "free memory" : "NVML"}};
  if (const std::string why = write_cache_file(path, j.dump(2) + "\n"); !why.empty())  // not fatal
    log_debug("{}: cannot write: {}", path.string(), why);
}

void apply_measurement(const CardMeasurement& m, Precision precision, DeviceProfile& p) {
  p.context_bytes = m.context_bytes;
  p.context_measured = true;
  p.context_by_free_memory = m.by_free_memory;
  if (m.tflops <= 0) return;
  switch (precision) {
    case Precision::fp32:
      p.tflops_fp32 = m.tflops;
      break;
    case Precision::tf32:
      p.tflops_tf32 = m.tflops;
      break;
    case Precision::bf16:
    case Precision::fp16:
      p.tflops_half = m.tflops;
      break;
    case Precision::fp8:
      p.tflops_fp8 = m.tflops;
      break;
    case Precision::int8:
      p.tops_int8 = m.tflops;
      break;
  }
  if (m.bandwidth > 0) p.bandwidth = m.bandwidth;
  if (m.host_bandwidth > 0) p.host_bandwidth = m.host_bandwidth;
  p.measured = true;
}

CardMeasurement measure_card(Device& device, Precision precision, int64_t limit_bytes) {
  const int64_t limit = limit_bytes > 0 ? limit_bytes : device.memory().free_bytes;
  const int64_t quarter = limit / 4;
  const auto stream = device.make_stream();
  CardMeasurement m;
  load_all_kernels(device);
  load_products(device, *stream, precision, quarter);
  if (precision == Precision::int8) load_products(device, *stream, Precision::fp16, quarter);  // heads are fp16
  m.tflops = product_rate(device, *stream, precision, quarter) * 1e-12;
  const size_t bytes = std::clamp<size_t>(static_cast<size_t>(quarter / 2), size_t{1} << 20, kLargestCopy);
  {
    const auto size = static_cast<int64_t>(bytes);
    const device::DeviceBuffer from = measuring_block(device, size), to = measuring_block(device, size);
    stream->fill_zero(from.data(), bytes);
    m.bandwidth = 2 * static_cast<double>(bytes) /
                  seconds_of(device, *stream, [&] { stream->copy(to.data(), from.data(), bytes); });
  }
  {
    const size_t part = std::min<size_t>(bytes, size_t{64} << 20);
    const device::DeviceBuffer there = measuring_block(device, static_cast<int64_t>(part)),
                               host = device.allocate_host(part);
    std::memset(host.data(), 1, part);
    m.host_bandwidth =
        static_cast<double>(part) / seconds_of(device, *stream, [&] { stream->copy(there.data(), host.data(), part); });
  }
  return m;
}

std::string measurement_line(const CardMeasurement& m, int64_t allocated_bytes, std::optional<int64_t> own_bytes) {
  nlohmann::ordered_json j = {{"version", kVersion},
                              {"tflops", m.tflops},
                              {"bandwidth", m.bandwidth},
                              {"host_bandwidth", m.host_bandwidth},
                              {"allocated_bytes", allocated_bytes}};
  j["own_bytes"] = own_bytes ? nlohmann::ordered_json(*own_bytes) : nlohmann::ordered_json(nullptr);
  return j.dump();
}

std::optional<CardMeasurement> run_measurement(const std::vector<std::string>& command,
                                               const std::function<int64_t()>& free_bytes, double timeout_s) {
  const int64_t free_before = free_bytes();
  MeasuringChild child(command);
  if (const auto line = child.line(timeout_s)) {
    try {
      const auto j = nlohmann::json::parse(*line);
      if (j.at("version") != kVersion)
        fail(ErrorCode::bad_data, "unsupported output version {}", j.at("version").dump());
      CardMeasurement m;
      m.tflops = j.at("tflops").get<double>();
      m.bandwidth = j.at("bandwidth").get<double>();
      m.host_bandwidth = j.at("host_bandwidth").get<double>();
      m.by_free_memory = j.at("own_bytes").is_null();
      const int64_t held = m.by_free_memory ? free_before - free_bytes() : j.at("own_bytes").get<int64_t>();
      m.context_bytes = held - j.at("allocated_bytes").get<int64_t>() + kRoundingBytes;
      if (m.context_bytes > kRoundingBytes && m.tflops > 0) return m;
      child.fail_with(fmt::format("implausible result: {} in use, {:g} TFLOP/s", format_bytes(held), m.tflops));
    } catch (const nlohmann::json::exception&) {
      child.fail_with(fmt::format("unexpected output \"{}\"", line->substr(0, 80)));
    } catch (const Error& e) {
      child.fail_with(e.what());
    }
  }
  log_info("cannot measure the GPU: {}; planning with data-sheet rates and an estimated context", child.problem());
  return std::nullopt;
}

void set_measuring_program(const std::filesystem::path& program) { measuring_program() = program; }

void set_library(const std::filesystem::path& file) {
  library_file() = file;
  measuring_program().clear();
  if (file.empty()) return;
  const std::filesystem::path folder = file.parent_path();  // LIB or LIB/ARCHITECTURE
  std::error_code ignored;
  for (const auto& prefix : {folder.parent_path(), folder.parent_path().parent_path()}) {
    const auto program = prefix / "bin" / "brim";
    if (measuring_program().empty() && std::filesystem::is_regular_file(program, ignored))
      measuring_program() = program;
  }
}

bool shares_process() { return !library_file().empty(); }

DeviceProfile cached_profile(Device& device, Precision precision) {
  DeviceProfile p = local_profile(device);
  if (device.kind() != device::DeviceKind::cuda || p.rate(precision) <= 0) return p;
  if (const auto m = cached_measurement(key_of(cuda_info(device), precision))) apply_measurement(*m, precision, p);
  return p;
}

DeviceProfile measured_profile(Device& device, Precision precision, int64_t limit_bytes) {
  DeviceProfile p = local_profile(device);
  if (device.kind() != device::DeviceKind::cuda || p.rate(precision) <= 0) return p;
  static std::mutex mutex;
  static std::vector<CardKey> failed;  // do not retry: a server opening ten models would wait ten times
  const std::lock_guard lock(mutex);
  const CardKey key = key_of(cuda_info(device), precision);
  auto m = cached_measurement(key);
  const bool tried = std::any_of(failed.begin(), failed.end(),
                                 [&](const CardKey& k) { return k.card == key.card && k.precision == key.precision; });
  if ((!m || m->tflops == 0) && !measuring_program().empty() && !tried) {
    log_info("measuring {} in {} (once, a few seconds)", device.name(), precision_name(precision));
    auto measured =
        run_measurement({measuring_program().string(), "measure-card", fmt::format("cuda:{}", device.index()),
                         precision_name(precision), std::to_string(limit_bytes)},
                        [&] { return device.memory().free_bytes; });
    if (measured) {
      if (m) measured->context_bytes = std::max(measured->context_bytes, m->context_bytes);
      store_measurement(key, *measured);
      m = measured;
    } else {
      failed.push_back(key);
    }
  }
  if (m) apply_measurement(*m, precision, p);
  return p;
}

bool found_larger_context(Device& device, Precision precision, int64_t planned_bytes, std::optional<int64_t> held_bytes,
                          std::string_view then) {
  if (shares_process() || device.kind() != device::DeviceKind::cuda || !held_bytes) return false;
  const int64_t context = *held_bytes - device.allocated_bytes();
  if (context <= planned_bytes) return false;
  log_info("{}: driver and libraries use {}, {} planned; {}", device.name(), format_bytes(context),
           format_bytes(planned_bytes), then);
  const CardKey key = key_of(cuda_info(device), precision);
  CardMeasurement m = cached_measurement(key).value_or(CardMeasurement{});
  m.context_bytes = context + (2 << 20);
  m.by_free_memory = false;
  store_measurement(key, m);
  return true;
}

}  // namespace brim::plan
