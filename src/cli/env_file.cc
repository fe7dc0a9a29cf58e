// SPDX-License-Identifier: Apache-2.0
#include "cli/env_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/units.h"

namespace brim::cli {
namespace {

using enum EnvKeyKind;
using enum EnvKeyStatus;

constexpr EnvKey kKeys[] = {
    {"SENTIMENT_MODEL_NAME", text, in_force,
     "the model of `brim score` and the default rung of `brim serve` where no --model is given"},
    {"GPU_MAX_UTILIZATION_WARN", number, in_force,
     "`brim monitor` and `brim serve` warn above this utilisation, percent (90)"},
    {"GPU_MAX_TEMPERATURE_C", number, in_force, "`brim monitor` and `brim serve` warn above this temperature, °C (85)"},
    {"GPU_MIN_FREE_VRAM_MB", number, in_force,
     "`brim monitor` and `brim serve` warn below this much free memory, MiB (500); `brim serve` leaves it free too"},
    {"SENTIMENT_BATCH_SIZE", number, in_force,
     "items after which the queue of `brim serve` is scored (10); batches on the device are planned, in tokens"},
    {"GPU_MEMORY_CLEANUP", flag, unnecessary,
     "memory is planned and allocated once, so nothing is left over to clean up"},
    {"GPU_PROFILING_ENABLED", flag, unnecessary,
     "every run measures itself and prints it; --trace FILE keeps the timeline"},
    {"FEATURE_CUDA_STREAMS", flag, unnecessary, "copies and kernels always overlap on streams of their own"},
    {"FEATURE_ADAPTIVE_SENTIMENT", flag, in_force, "`brim serve` chooses its model by market hours"},
    {"SENTIMENT_MODEL_OPEN", text, in_force, "its model while the market is open (distilbert)"},
    {"SENTIMENT_MODEL_CLOSED", text, in_force, "its model while the market is closed (vader)"},
    {"MARKET_STATUS_OVERRIDE", text, in_force, "its market, for tests: open, extended or closed"},
};

constexpr const char* kProgramVariables[] = {"BRIM_CACHE",     "BRIM_CUBLASLT",      "BRIM_DEBUG",  "BRIM_ENV_FILE",
                                             "BRIM_FORCE_ISA", "BRIM_HOME",          "BRIM_MODELS", "BRIM_NVML_LIBRARY",
                                             "BRIM_NVTX",      "BRIM_STAGING_DEPTH", "BRIM_SYNC"};

// A file that comes with a project must not make this process load code.
constexpr const char* kEnvironmentOnly[] = {"BRIM_CUBLASLT", "BRIM_NVML_LIBRARY", "BRIM_ENV_FILE"};
// Variables of other programs that Brim heeds.
constexpr const char* kOthersVariables[] = {"CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE", "NO_COLOR"};

const EnvKey* find_key(const std::string& name) {
  for (const EnvKey& key : kKeys)
    if (name == key.name) return &key;
  return nullptr;
}

std::optional<double> to_number(const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !std::isfinite(number) || number < 0) return std::nullopt;
  return number;
}

bool is_flag_word(const std::string& value) {
  for (const char* word : {"0", "1", "true", "false", "yes", "no", "on", "off"})
    if (value == word) return true;
  return false;
}

// The variables there are: the verbs' flags, the program's own, the known keys and those of others.
class KnownVariables {
 public:
  explicit KnownVariables(const std::vector<std::string>& flags) : names_(flags) {
    names_.insert(names_.end(), std::begin(kProgramVariables), std::end(kProgramVariables));
    for (const std::string& name : names_) stems_.push_back(name.substr(kPrefix.size()));
    names_.insert(names_.end(), std::begin(kOthersVariables), std::end(kOthersVariables));
    for (const EnvKey& key : kKeys) names_.emplace_back(key.name);
  }
  static bool ours(std::string_view name) { return name.starts_with(kPrefix); }
  bool knows(std::string_view name) const { return std::find(names_.begin(), names_.end(), name) != names_.end(); }
  // Empty: none is near. Names of other programs are often alike without being meant.
  std::string nearest(std::string_view name) const {
    if (!ours(name)) return nearest_name(name, names_, 2);
    const std::string near = nearest_name(name.substr(kPrefix.size()), stems_);
    return near.empty() ? near : std::string(kPrefix) + near;
  }

 private:
  static constexpr std::string_view kPrefix = "BRIM_";
  std::vector<std::string> names_, stems_;
};

std::string unknown(const std::string& name, const std::string& near) {
  return fmt::format("unknown variable {}{}", name, near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
}

}  // namespace

std::span<const EnvKey> env_keys() { return kKeys; }

std::string env_file_of(int argc, const char* const* argv) {
  constexpr const char* kFlag = "--env-file";
  std::string path = env("BRIM_ENV_FILE").value_or("");
  for (int i = 1; i < argc && std::strcmp(argv[i], "--") != 0; ++i) {
    const std::string_view word = argv[i];
    if (word == kFlag && i + 1 < argc)
      path = argv[++i];
    else if (word.starts_with("--env-file="))
      path = word.substr(std::strlen(kFlag) + 1);
  }
  return path;
}

void check_env_value(const std::string& where, const std::string& name, const std::string& value) {
  const EnvKey* key = find_key(name);
  if (key == nullptr || value.empty()) return;
  if (key->kind == number && !to_number(value))
    fail(ErrorCode::usage, "{}: {}={}: must be a number, 0 or more", where, name, value);
  if (key->kind == flag && !is_flag_word(value)) fail(ErrorCode::usage, "{}: {}={}: use 1 or 0", where, name, value);
}

std::vector<std::string> load_env_file(const std::string& path, const std::vector<std::string>& flags) {
  std::ifstream in(path, std::ios::binary);
  std::error_code ec;
  if (!in.is_open() || std::filesystem::is_directory(path, ec))
    fail(ErrorCode::usage, "--env-file {}: cannot be read", path);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto entries = parse_env_text(bytes, path);
  const KnownVariables known(flags);
  std::vector<std::string> notes;
  std::vector<const EnvEntry*> taken;
  for (const EnvEntry& e : entries) {
    const std::string where = fmt::format("{}:{}", path, e.line);
    if (std::find(std::begin(kEnvironmentOnly), std::end(kEnvironmentOnly), e.name) != std::end(kEnvironmentOnly))
      fail(ErrorCode::usage, "{}: {} is not taken from a file; set it in the environment", where, e.name);
    if (known.knows(e.name)) {
      check_env_value(where, e.name, e.value);
      taken.push_back(&e);
      continue;
    }
    const bool ours = KnownVariables::ours(e.name);
    const std::string near = known.nearest(e.name), what = fmt::format("{}: {}", where, unknown(e.name, near));
    if (ours && !near.empty()) fail(ErrorCode::usage, "{}", what);
    if (ours || !near.empty()) notes.push_back(what + "; it is ignored");
  }
  // The last line of a key wins, as in a shell; what the process was started with wins over the file.
  for (auto e = taken.rbegin(); e != taken.rend(); ++e) set_env_default((*e)->name, (*e)->value);
  return notes;
}

std::span<const char* const> program_variables() { return kProgramVariables; }

std::vector<std::string> misspelt_environment(const std::vector<std::string>& flags) {
  const KnownVariables known(flags);
  std::vector<std::string> notes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable(*entry);
    const std::string name(variable.substr(0, variable.find('=')));
    if (!KnownVariables::ours(name) || known.knows(name) || name == "BRIM_TESTS")
      continue;  // that one is the launcher's
    if (const std::string near = known.nearest(name); !near.empty())
      notes.push_back(unknown(name, near) + "; it is ignored");
  }
  return notes;
}

std::vector<std::string> env_notes() {
  std::vector<std::string> notes;
  for (const EnvKey& key : kKeys) {
    const auto value = env(key.name);
    if (!value || key.status == in_force) continue;
    notes.push_back(fmt::format("{}={}: accepted, not needed: {}", key.name, *value, key.help));
  }
  return notes;
}

double env_number(const char* name, double otherwise) {
  const auto value = env(name);
  if (!value) return otherwise;
  check_env_value("environment", name, *value);
  return *to_number(*value);
}

}  // namespace brim::cli
