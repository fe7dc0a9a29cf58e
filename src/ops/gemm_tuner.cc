// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm_tuner.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "base/cache_file.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "ops/gemm_file.h"

#if defined(BRIM_WITH_CUDA)
#include "ops/cuda/cublas_lt.h"
#endif

namespace brim::ops {

using device::DeviceKind;
using device::Stream;

namespace {
thread_local GemmTuning* active_tuning = nullptr;
}

GemmTuning::GemmTuning(double seconds_per_class) : seconds_(seconds_per_class) {
  BRIM_CHECK(active_tuning == nullptr, "GEMM tuning is already active on this thread");
  active_tuning = this;
}
GemmTuning::~GemmTuning() { active_tuning = nullptr; }

std::string gemm_choice_text(const GemmChoice& c) {
  return fmt::format("{:<60} {:>8.1f} us, {:>8.1f} us by default, {} tried", c.key, c.us, c.default_us, c.tried);
}

double product_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    apart += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(a[i]), 2);
  }
  const double distance = size > 0 ? std::sqrt(apart / size) : std::sqrt(apart);
  return a.size() == b.size() && std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
}

void GemmTuning::meet(Stream& stream, const LinearArgs& args) {
  GemmTuning* t = active_tuning;
  if (t == nullptr || stream.kind() != DeviceKind::cuda) return;
  const std::string shape =
      fmt::format("{} {} {} {} {} {} {}", args.x.rows(), args.w.N, args.w.K, static_cast<int>(args.w.precision),
                  static_cast<int>(args.activation), static_cast<bool>(args.bias), static_cast<int>(args.y.dtype));
  if (std::find(t->met_.begin(), t->met_.end(), shape) != t->met_.end()) return;
  t->met_.push_back(shape);
  if (GemmChoice choice = tune_linear(stream, args, t->seconds_); !choice.key.empty())
    t->done_.push_back(std::move(choice));
}

#if defined(BRIM_WITH_CUDA)
namespace {

std::filesystem::path cache_file(const std::string& library) {
  std::string name;
  for (const char c : library) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  return cache_dir() / "gemm" / (name + ".json");
}

}  // namespace

GemmChoice tune_linear(Stream& stream, const LinearArgs& args, double seconds) {
  return stream.kind() == DeviceKind::cuda ? tune_linear_cuda(stream, args, seconds) : GemmChoice{};
}
void fix_gemm_algorithms(Stream& stream) {
  if (stream.kind() == DeviceKind::cuda) fix_gemm_algorithms_cuda(stream);
}
std::vector<GemmChoice> gemm_choices(Stream& stream) {
  return stream.kind() == DeviceKind::cuda ? gemm_choices_cuda(stream) : std::vector<GemmChoice>{};
}
void use_gemm_choices(Stream& stream, const std::vector<GemmChoice>& choices) {
  if (stream.kind() == DeviceKind::cuda) use_gemm_choices_cuda(stream, choices);
}

int load_gemm_choices(Stream& stream) {
  if (stream.kind() != DeviceKind::cuda) return 0;
  const std::string library = gemm_library_cuda(stream);
  const std::vector<GemmChoice> known = known_gemm_choices(library);
  use_gemm_choices_cuda(stream, known);
  std::ifstream file(cache_file(library));
  if (!file) return static_cast<int>(known.size());
  std::optional<std::vector<GemmChoice>> choices;
  try {
    choices = read_gemm_file(std::string(std::istreambuf_iterator<char>(file), {}), library);
  } catch (const std::exception& e) {
    log_warning("{}: {}; ignoring the GEMM choices, tune again", cache_file(library).string(), e.what());
    return static_cast<int>(known.size());
  }
  if (!choices) return static_cast<int>(known.size());
  use_gemm_choices_cuda(stream, *choices);
  return static_cast<int>(known.size() + choices->size());
}

void spare_gemm_library(Stream& stream) {
  if (stream.kind() == DeviceKind::cuda) spare_gemm_library_cuda(stream);
}
void release_gemm_library(Stream& stream) {
  if (stream.kind() == DeviceKind::cuda) release_gemm_library_cuda(stream);
}
void save_gemm_choices(Stream& stream) {
  if (stream.kind() != DeviceKind::cuda) return;
  const std::string library = gemm_library_cuda(stream);
  const auto path = cache_file(library);
  const std::string text = gemm_file_text(library, gemm_choices_cuda(stream));
  if (const std::string why = write_cache_file(path, text); !why.empty())
    log_warning("{}: {}; the GEMM choices apply to this run only", path.string(), why);
}
#else
GemmChoice tune_linear(Stream&, const LinearArgs&, double) { return {}; }
void fix_gemm_algorithms(Stream&) {}
std::vector<GemmChoice> gemm_choices(Stream&) { return {}; }
void use_gemm_choices(Stream&, const std::vector<GemmChoice>&) {}
int load_gemm_choices(Stream&) { return 0; }
void save_gemm_choices(Stream&) {}
void preload_gemm_library() {}
void spare_gemm_library(Stream&) {}
void release_gemm_library(Stream&) {}
#endif

}  // namespace brim::ops
