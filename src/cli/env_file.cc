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

namespace brim {
namespace {

using enum EnvKeyKind;
using enum EnvKeyStatus;

constexpr EnvKey kKeys[] = {
    {"SENTIMENT_MODEL_NAME", text, in_force, "the model of `brim score` where no --model is given"},
    {"GPU_MAX_UTILIZATION_WARN", number, in_force, "`brim monitor` warns above this utilisation, percent (90)"},
    {"GPU_MAX_TEMPERATURE_C", number, in_force, "`brim monitor` warns above this temperature, °C (85)"},
    {"GPU_MIN_FREE_VRAM_MB", number, in_force, "`brim monitor` warns below this much free memory, MiB (500)"},
    {"SENTIMENT_BATCH_SIZE", number, unnecessary,
     "the plan chooses the largest batch that pays, counted in tokens; see `brim plan`"},
    {"GPU_MEMORY_CLEANUP", flag, unnecessary,
     "memory is planned and allocated once, so nothing is left over to clean up"},
    {"GPU_PROFILING_ENABLED", flag, unnecessary,
     "every run measures itself and prints it; --trace FILE keeps the timeline"},
    {"FEATURE_CUDA_STREAMS", flag, unnecessary, "copies and kernels always overlap on streams of their own"},
    {"FEATURE_ADAPTIVE_SENTIMENT", flag, later, "the server's choice of model by market hours"},
    {"SENTIMENT_MODEL_OPEN", text, later, "the server's model while the market is open"},
    {"SENTIMENT_MODEL_CLOSED", text, later, "the server's model while the market is closed"},
    {"MARKET_STATUS_OVERRIDE", text, later, "the server's market status for tests"},
};

constexpr const char* kProgramVariables[] = {"BRIM_CACHE",     "BRIM_CUBLASLT",      "BRIM_DEBUG",  "BRIM_ENV_FILE",
                                             "BRIM_FORCE_ISA", "BRIM_HOME",          "BRIM_MODELS", "BRIM_NVML_LIBRARY",
                                             "BRIM_NVTX",      "BRIM_STAGING_DEPTH", "BRIM_SYNC"};

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

// The BRIM_ variables there are: the verbs' flags and the program's own.
class KnownVariables {
 public:
  explicit KnownVariables(const std::vector<std::string>& flags) : names_(flags) {
    names_.insert(names_.end(), std::begin(kProgramVariables), std::end(kProgramVariables));
    for (const std::string& name : names_) stems_.push_back(name.substr(kPrefix.size()));
  }
  bool stranger(std::string_view name) const {
    return name.starts_with(kPrefix) && std::find(names_.begin(), names_.end(), name) == names_.end();
  }
  std::string nearest(std::string_view name) const {  // empty: none is near
    const std::string near = nearest_name(name.substr(kPrefix.size()), stems_);
    return near.empty() ? near : std::string(kPrefix) + near;
  }

 private:
  static constexpr std::string_view kPrefix = "BRIM_";
  std::vector<std::string> names_, stems_;
};

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

std::vector<EnvEntry> load_env_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::error_code ec;
  if (!in.is_open() || std::filesystem::is_directory(path, ec))
    fail(ErrorCode::usage, "--env-file {}: cannot be read", path);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto entries = parse_env_text(bytes, path);
  for (const EnvEntry& e : entries) check_env_value(fmt::format("{}:{}", path, e.line), e.name, e.value);
  // The last line of a key wins, as in a shell; what the process was started with wins over the file.
  for (auto e = entries.rbegin(); e != entries.rend(); ++e) set_env_default(e->name, e->value);
  return entries;
}

std::span<const char* const> program_variables() { return kProgramVariables; }

std::vector<std::string> check_env_names(const std::string& path, const std::vector<EnvEntry>& entries,
                                         const std::vector<std::string>& flags) {
  const KnownVariables known(flags);
  std::vector<std::string> notes;
  for (const EnvEntry& e : entries) {
    if (!known.stranger(e.name)) continue;
    if (const std::string near = known.nearest(e.name); !near.empty())
      fail(ErrorCode::usage, "{}:{}: unknown variable {}; did you mean {}?", path, e.line, e.name, near);
    notes.push_back(fmt::format("{}:{}: {}: Brim knows no such variable, and leaves it alone", path, e.line, e.name));
  }
  return notes;
}

std::vector<std::string> misspelt_environment(const std::vector<std::string>& flags) {
  const KnownVariables known(flags);
  std::vector<std::string> notes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable(*entry);
    const std::string name(variable.substr(0, variable.find('=')));
    if (!known.stranger(name) || name == "BRIM_TESTS") continue;  // that one is the launcher's
    if (const std::string near = known.nearest(name); !near.empty())
      notes.push_back(fmt::format("{}: Brim knows no such variable and leaves it alone; did you mean {}?", name, near));
  }
  return notes;
}

std::vector<std::string> env_notes() {
  std::vector<std::string> notes;
  for (const EnvKey& key : kKeys) {
    const auto value = env(key.name);
    if (!value || key.status == in_force) continue;
    notes.push_back(key.status == unnecessary
                        ? fmt::format("{}={}: accepted, not needed: {}", key.name, *value, key.help)
                        : fmt::format("{}={}: not yet in force: {}", key.name, *value, key.help));
  }
  return notes;
}

double env_number(const char* name, double otherwise) {
  const auto value = env(name);
  if (!value) return otherwise;
  check_env_value("environment", name, *value);
  return *to_number(*value);
}

}  // namespace brim
