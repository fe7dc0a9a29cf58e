// SPDX-License-Identifier: Apache-2.0
#include "cli/env_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/units.h"

namespace brim::cli {
namespace {

using enum EnvKeyKind;
using enum EnvKeyStatus;

constexpr EnvKey kKeys[] = {
    {"SENTIMENT_MODEL_NAME", text, in_force,
     "default rung of `brim serve`; in a file also the model of `brim score` and `brim eval` without --model"},
    {"GPU_MAX_UTILIZATION_WARN", number, in_force,
     "`brim monitor` and `brim serve` warn above this utilisation, percent (90)"},
    {"GPU_MAX_TEMPERATURE_C", number, in_force, "`brim monitor` and `brim serve` warn above this temperature, °C (85)"},
    {"GPU_MIN_FREE_VRAM_MB", number, in_force,
     "`brim monitor` and `brim serve` warn below this much free memory, MiB (500); `brim serve` also leaves it free"},
    {"SENTIMENT_BATCH_SIZE", number, in_force,
     "items per flush of the queue of `brim serve` (10); device batches are planned in tokens"},
    {"GPU_MEMORY_CLEANUP", flag, unnecessary, "memory is planned and allocated once; there is nothing to clean up"},
    {"GPU_PROFILING_ENABLED", flag, in_force, "`brim serve` logs the readings of the GPU once a minute"},
    {"FEATURE_CUDA_STREAMS", flag, unnecessary, "copies and kernels always overlap on separate streams"},
    {"FEATURE_ADAPTIVE_SENTIMENT", flag, in_force, "`brim serve` chooses the model by market hours"},
    {"SENTIMENT_MODEL_OPEN", text, in_force, "model of `brim serve` while the market is open (distilbert)"},
    {"SENTIMENT_MODEL_CLOSED", text, in_force, "model of `brim serve` while the market is closed (vader)"},
    {"MARKET_STATUS_OVERRIDE", text, in_force, "market status of `brim serve`, for tests: open, extended or closed"},
};

struct EnvBounds {
  std::string_view name;
  double least, most;
  bool whole;
  const char* text;
};
constexpr EnvBounds kBounds[] = {
    {"GPU_MAX_UTILIZATION_WARN", 0, 100, false, "must be a percentage from 0 to 100 (0: no warnings)"},
    {"GPU_MAX_TEMPERATURE_C", 0, 150, false, "must be a number from 0 to 150 (0: no warnings)"},
    {"SENTIMENT_BATCH_SIZE", 1, 100'000, true, "must be a whole number from 1 to 100,000"},
};
constexpr EnvBounds kAnyNumber = {"", 0, HUGE_VAL, false, "must be a number, 0 or more"};

constexpr const char* kProgramVariables[] = {"BRIM_CACHE",     "BRIM_CUBLASLT",      "BRIM_DEBUG",  "BRIM_ENV_FILE",
                                             "BRIM_FORCE_ISA", "BRIM_HOME",          "BRIM_MODELS", "BRIM_NVML_LIBRARY",
                                             "BRIM_NVTX",      "BRIM_STAGING_DEPTH", "BRIM_SYNC"};

// Every BRIM_ variable is in one of the next two lists, and variables in neither are rejected, so that a new setting
// must be added to one of them. A file that comes with a project must not make this process load code, and must not
// choose output files or folders, exposed data, keys or addresses to connect to; nor another file that could.
constexpr std::string_view kNotFromFile[] = {"BRIM_ACCESS_LOG",
                                             "BRIM_ADAPTERS_ROOT",
                                             "BRIM_ALLOWED_HOST",
                                             "BRIM_ALLOW_PICKLE",
                                             "BRIM_API_KEY",
                                             "BRIM_API_KEY_FILE",
                                             "BRIM_APPLY",
                                             "BRIM_CACHE",
                                             "BRIM_CONFIG",
                                             "BRIM_CORS_ALLOW_ORIGIN",
                                             "BRIM_CUBLASLT",
                                             "BRIM_DISAGREEMENTS",
                                             "BRIM_ENV_FILE",
                                             "BRIM_INSECURE",
                                             "BRIM_JOBS_ROOT",
                                             "BRIM_JSONL",
                                             "BRIM_LISTEN",
                                             "BRIM_LLM_KEY",
                                             "BRIM_LLM_URL",
                                             "BRIM_LOGGING_DIR",
                                             "BRIM_NVML_LIBRARY",
                                             "BRIM_OUTPUT",
                                             "BRIM_OUTPUT_DIR",
                                             "BRIM_OVERWRITE_OUTPUT_DIR",
                                             "BRIM_PLOT",
                                             "BRIM_PULL",
                                             "BRIM_RECORD_AGREEMENT",
                                             "BRIM_STATE_DIR",
                                             "BRIM_SUMMARY",
                                             "BRIM_SUMMARY_JSON",
                                             "BRIM_TLS_CERT",
                                             "BRIM_TLS_KEY",
                                             "BRIM_TRACE",
                                             "BRIM_TRUSTED_PROXY",
                                             "BRIM_URL"};
constexpr std::string_view kFromFile[] = {"BRIM_ACTUAL",
                                          "BRIM_ADAM_BETA1",
                                          "BRIM_ADAM_BETA2",
                                          "BRIM_ADAM_EPSILON",
                                          "BRIM_ADAPTER",
                                          "BRIM_ALIAS",
                                          "BRIM_ALL_SCORES",
                                          "BRIM_ALPHA_PATTERN",
                                          "BRIM_ANCHOR_EVERY",
                                          "BRIM_AT",
                                          "BRIM_AUTO_FIND_BATCH_SIZE",
                                          "BRIM_BANDWIDTH",
                                          "BRIM_BASELINE",
                                          "BRIM_BASELINES",
                                          "BRIM_BATCH_SIZE",
                                          "BRIM_BATCH_SIZES",
                                          "BRIM_BATCH_TOKENS",
                                          "BRIM_BF16",
                                          "BRIM_BF16_FULL_EVAL",
                                          "BRIM_BIAS",
                                          "BRIM_CALENDAR",
                                          "BRIM_CALLERS",
                                          "BRIM_CATEGORICAL",
                                          "BRIM_CHECK",
                                          "BRIM_CHECKPOINT_SECONDS",
                                          "BRIM_CLASS_WEIGHTS",
                                          "BRIM_COMPONENTS",
                                          "BRIM_CONNECTIONS_PER_ADDRESS",
                                          "BRIM_COUNT",
                                          "BRIM_DATA",
                                          "BRIM_DATALOADER_DROP_LAST",
                                          "BRIM_DATALOADER_NUM_WORKERS",
                                          "BRIM_DATALOADER_PERSISTENT_WORKERS",
                                          "BRIM_DATALOADER_PIN_MEMORY",
                                          "BRIM_DATALOADER_PREFETCH_FACTOR",
                                          "BRIM_DATA_SEED",
                                          "BRIM_DDP_FIND_UNUSED_PARAMETERS",
                                          "BRIM_DEBUG",
                                          "BRIM_DELIMITER",
                                          "BRIM_DETERMINISTIC",
                                          "BRIM_DEVICE",
                                          "BRIM_DISABLE_TQDM",
                                          "BRIM_DO_EVAL",
                                          "BRIM_DO_TRAIN",
                                          "BRIM_DRAIN_SECONDS",
                                          "BRIM_DROPOUT",
                                          "BRIM_DYNAMIC_BATCH_SIZING",
                                          "BRIM_EARLY_STOPPING_PATIENCE",
                                          "BRIM_EARLY_STOP_PATIENCE_STEPS",
                                          "BRIM_EMBEDDING_MODEL",
                                          "BRIM_ENTITIES",
                                          "BRIM_ENTITIES_FILE",
                                          "BRIM_EPOCHS",
                                          "BRIM_EVALUATION_STRATEGY",
                                          "BRIM_EVAL_ACCUMULATION_STEPS",
                                          "BRIM_EVAL_STEPS",
                                          "BRIM_EVAL_STRATEGY",
                                          "BRIM_EXCLUDE_MODULES",
                                          "BRIM_EXTEND",
                                          "BRIM_FAN_IN_FAN_OUT",
                                          "BRIM_FILL",
                                          "BRIM_FOLDS",
                                          "BRIM_FORCE_ISA",
                                          "BRIM_FORECAST",
                                          "BRIM_FORMAT",
                                          "BRIM_FP16",
                                          "BRIM_FP16_FULL_EVAL",
                                          "BRIM_FP16_OPT_LEVEL",
                                          "BRIM_FREEZE",
                                          "BRIM_FREQ",
                                          "BRIM_FROM",
                                          "BRIM_FULL_DETERMINISM",
                                          "BRIM_FUTURE_COLUMNS",
                                          "BRIM_GAP",
                                          "BRIM_GAPS",
                                          "BRIM_GRADIENT_ACCUMULATION_STEPS",
                                          "BRIM_GRADIENT_CHECKPOINTING",
                                          "BRIM_GRADIENT_CHECKPOINTING_KWARGS",
                                          "BRIM_GRAD_ACCUM_STEPS",
                                          "BRIM_GREATER_IS_BETTER",
                                          "BRIM_GROUP_BY_LENGTH",
                                          "BRIM_HALF_PRECISION_BACKEND",
                                          "BRIM_HARD_WEIGHT",
                                          "BRIM_HELD_OUT",
                                          "BRIM_HISTORY_SIZE",
                                          "BRIM_HOME",
                                          "BRIM_HORIZON",
                                          "BRIM_HUB_MODEL_ID",
                                          "BRIM_HUB_STRATEGY",
                                          "BRIM_ID_COLUMN",
                                          "BRIM_IGNORE_MISMATCHED_HEAD",
                                          "BRIM_INCLUDE",
                                          "BRIM_INCLUDE_TOKENS_PER_SECOND",
                                          "BRIM_INFERENCE_MODE",
                                          "BRIM_INIT_LORA_WEIGHTS",
                                          "BRIM_INPUT_SIZE",
                                          "BRIM_INTERVAL",
                                          "BRIM_IO_THREADS",
                                          "BRIM_JSON",
                                          "BRIM_KEEP_ALIVE",
                                          "BRIM_KEEP_JOBS",
                                          "BRIM_KEEP_MODELS",
                                          "BRIM_LABELS",
                                          "BRIM_LABELS_FILE",
                                          "BRIM_LABEL_COLUMN",
                                          "BRIM_LABEL_NAMES",
                                          "BRIM_LABEL_SMOOTHING_FACTOR",
                                          "BRIM_LAME_DUCK_SECONDS",
                                          "BRIM_LAYERS_PATTERN",
                                          "BRIM_LAYERS_TO_TRANSFORM",
                                          "BRIM_LAYOUT",
                                          "BRIM_LEARNING_RATE",
                                          "BRIM_LEAVE_FREE",
                                          "BRIM_LEVEL",
                                          "BRIM_LLM_API",
                                          "BRIM_LLM_CONNECT_TIMEOUT",
                                          "BRIM_LLM_FIRST_TOKEN_TIMEOUT",
                                          "BRIM_LLM_MAX_TOKENS",
                                          "BRIM_LLM_MODEL",
                                          "BRIM_LLM_REQUESTS",
                                          "BRIM_LLM_TIMEOUT",
                                          "BRIM_LOAD_BEST_MODEL_AT_END",
                                          "BRIM_LOCAL_RANK",
                                          "BRIM_LOGGING_FIRST_STEP",
                                          "BRIM_LOGGING_STEPS",
                                          "BRIM_LOGGING_STRATEGY",
                                          "BRIM_LOG_LEVEL",
                                          "BRIM_LONG_TEXT",
                                          "BRIM_LOOKBACKS",
                                          "BRIM_LORA_ALPHA",
                                          "BRIM_LORA_DROPOUT",
                                          "BRIM_LORA_LAYERS",
                                          "BRIM_LORA_R",
                                          "BRIM_LORA_TARGETS",
                                          "BRIM_LOSSES",
                                          "BRIM_LOSS_MEAN",
                                          "BRIM_LR_REFERENCE_BATCH",
                                          "BRIM_LR_SCALING",
                                          "BRIM_LR_SCHEDULER_TYPE",
                                          "BRIM_MAX_BATCH_TOKENS",
                                          "BRIM_MAX_CLIENT_BATCH_SIZE",
                                          "BRIM_MAX_CONCURRENT_REQUESTS",
                                          "BRIM_MAX_GRAD_NORM",
                                          "BRIM_MAX_JOBS",
                                          "BRIM_MAX_JOBS_BYTES",
                                          "BRIM_MAX_LENGTH",
                                          "BRIM_MAX_LOSS",
                                          "BRIM_MAX_MEMORY_GB",
                                          "BRIM_MAX_MEMORY_PERCENT",
                                          "BRIM_MAX_QUEUE_MS",
                                          "BRIM_MAX_SEQ_LENGTH",
                                          "BRIM_MAX_SIZE",
                                          "BRIM_MAX_STEPS",
                                          "BRIM_MAX_TEMPERATURE_C",
                                          "BRIM_MAX_UTILIZATION_WARN",
                                          "BRIM_MEASURE",
                                          "BRIM_MEMORY_LIMIT",
                                          "BRIM_MEMORY_MONITORING",
                                          "BRIM_METRIC_FOR_BEST_MODEL",
                                          "BRIM_MIN_FREE_VRAM_MB",
                                          "BRIM_MISSING",
                                          "BRIM_MLP_UNITS",
                                          "BRIM_MODE",
                                          "BRIM_MODEL",
                                          "BRIM_MODELS",
                                          "BRIM_MODEL_NAME_OR_PATH",
                                          "BRIM_MODULES_TO_SAVE",
                                          "BRIM_MULTI_LABEL",
                                          "BRIM_NESTED",
                                          "BRIM_NORMALIZE",
                                          "BRIM_NO_CUDA",
                                          "BRIM_NO_QUOTES",
                                          "BRIM_NUM_LR_DECAYS",
                                          "BRIM_NUM_TRAIN_EPOCHS",
                                          "BRIM_NUM_WORKERS",
                                          "BRIM_NVTX",
                                          "BRIM_N_BASIS",
                                          "BRIM_N_BLOCKS",
                                          "BRIM_N_HARMONICS",
                                          "BRIM_ONCE",
                                          "BRIM_ON_ERROR",
                                          "BRIM_OPTIM",
                                          "BRIM_OUTPUT_FORMAT",
                                          "BRIM_PAIR_COLUMN",
                                          "BRIM_PARKED_LIMIT",
                                          "BRIM_PAST_COLUMNS",
                                          "BRIM_PAYLOAD_LIMIT",
                                          "BRIM_PEFT_TYPE",
                                          "BRIM_PERSISTENT_WORKERS",
                                          "BRIM_PER_DEVICE_EVAL_BATCH_SIZE",
                                          "BRIM_PER_DEVICE_TRAIN_BATCH_SIZE",
                                          "BRIM_PIN_MEMORY",
                                          "BRIM_PLOT_SERIES",
                                          "BRIM_POOLING",
                                          "BRIM_PRECISION",
                                          "BRIM_PREDICTION_LOSS_ONLY",
                                          "BRIM_PREFETCH_FACTOR",
                                          "BRIM_PRESET",
                                          "BRIM_PROMPT_NAME",
                                          "BRIM_PUSH_TO_HUB",
                                          "BRIM_QUIET",
                                          "BRIM_R",
                                          "BRIM_RANDOM_SEED",
                                          "BRIM_RANK_PATTERN",
                                          "BRIM_RECOMPUTE",
                                          "BRIM_REFIT",
                                          "BRIM_RELEASE_DEVICE_AFTER",
                                          "BRIM_REMOVE_UNUSED_COLUMNS",
                                          "BRIM_REPEATS",
                                          "BRIM_REPORT_TO",
                                          "BRIM_RESUME",
                                          "BRIM_RESUME_FROM_CHECKPOINT",
                                          "BRIM_ROUNDS",
                                          "BRIM_RUN",
                                          "BRIM_RUN_NAME",
                                          "BRIM_SAMPLES",
                                          "BRIM_SAMPLING",
                                          "BRIM_SAVE_SAFETENSORS",
                                          "BRIM_SAVE_STEPS",
                                          "BRIM_SAVE_STRATEGY",
                                          "BRIM_SAVE_TOTAL_LIMIT",
                                          "BRIM_SCALER_TYPE",
                                          "BRIM_SEASON",
                                          "BRIM_SECONDS",
                                          "BRIM_SEED",
                                          "BRIM_SENTIMENT_MODEL",
                                          "BRIM_SERVE",
                                          "BRIM_SHARD",
                                          "BRIM_SHARED_WEIGHTS",
                                          "BRIM_SHRINK",
                                          "BRIM_SIZES",
                                          "BRIM_SKIP_MEMORY_METRICS",
                                          "BRIM_STACK_TYPES",
                                          "BRIM_STAGING_DEPTH",
                                          "BRIM_STATIC_COLUMNS",
                                          "BRIM_STEP",
                                          "BRIM_STUDENT_LAYERS",
                                          "BRIM_SYNC",
                                          "BRIM_TARGET_COLUMN",
                                          "BRIM_TARGET_MODULES",
                                          "BRIM_TARGET_UTILIZATION",
                                          "BRIM_TASK",
                                          "BRIM_TASK_TYPE",
                                          "BRIM_TEACHER",
                                          "BRIM_TEACHER_WEIGHT",
                                          "BRIM_TEMPERATURE",
                                          "BRIM_TEMPLATE",
                                          "BRIM_TEXTS",
                                          "BRIM_TEXT_COLUMN",
                                          "BRIM_TF32",
                                          "BRIM_TFLOPS",
                                          "BRIM_THREADS",
                                          "BRIM_THRESHOLD",
                                          "BRIM_TIME_COLUMN",
                                          "BRIM_TOKENIZER_THREADS",
                                          "BRIM_TOKEN_SET",
                                          "BRIM_TOKEN_TRAIN",
                                          "BRIM_TOKEN_VAL",
                                          "BRIM_TORCH_COMPILE",
                                          "BRIM_TORCH_EMPTY_CACHE_STEPS",
                                          "BRIM_TRAIN",
                                          "BRIM_TRAIN_BATCH_SIZE",
                                          "BRIM_TRAIN_FILE",
                                          "BRIM_TRAIN_SAMPLING_STRATEGY",
                                          "BRIM_TYPICAL_LENGTH",
                                          "BRIM_USE_CPU",
                                          "BRIM_USE_DORA",
                                          "BRIM_USE_MIXED_PRECISION",
                                          "BRIM_USE_RSLORA",
                                          "BRIM_VAL",
                                          "BRIM_VALIDATION_FILE",
                                          "BRIM_VAL_CHECK_STEPS",
                                          "BRIM_VERIFY",
                                          "BRIM_VRAM",
                                          "BRIM_WARM",
                                          "BRIM_WARMUP_RATIO",
                                          "BRIM_WARMUP_STEPS",
                                          "BRIM_WARM_STEPS",
                                          "BRIM_WEIGHT_DECAY",
                                          "BRIM_WINDOW"};

// Variables of other programs that Brim honours.
constexpr const char* kOthersVariables[] = {"CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE", "NO_COLOR"};
// Not from a file, which could send the token to another server. Files shared with other programs may contain them.
constexpr std::string_view kOthersNotFromFile[] = {"HF_ENDPOINT", "HF_TOKEN"};

// Keys set by the file, which apply to every command that uses them; in the environment they apply only to the
// commands of reads_plain_keys().
struct FileKeys {
  std::string path;
  std::map<std::string, std::string> values;
};
FileKeys& file_keys() {
  static FileKeys keys;
  return keys;
}

template <class List>
bool contains(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

// BRIM_STATE_DIR becomes --state-dir.
std::string flag_of(std::string_view variable) {
  std::string flag = "--";
  for (const char c : variable.substr(std::strlen("BRIM_")))
    flag += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return flag;
}

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

// All known variables: flags of the commands and of the program, known keys and variables of other programs.
class KnownVariables {
 public:
  explicit KnownVariables(const std::vector<std::string>& flags) : names_(flags) {
    names_.insert(names_.end(), std::begin(kProgramVariables), std::end(kProgramVariables));
    for (const std::string& name : names_) stems_.push_back(name.substr(kPrefix.size()));
    names_.insert(names_.end(), std::begin(kOthersVariables), std::end(kOthersVariables));
    for (const EnvKey& key : kKeys) names_.emplace_back(key.name);
  }
  static bool ours(std::string_view name) { return name.starts_with(kPrefix); }
  // Includes flags of commands that this build lacks, such as those of the server.
  bool knows(std::string_view name) const {
    return contains(names_, name) || contains(kFromFile, name) || contains(kNotFromFile, name);
  }
  // Empty if no name is similar. Other programs' variables may be similar by chance.
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

const char* env_number_problem(std::string_view name, double value) {
  const auto found =
      std::find_if(std::begin(kBounds), std::end(kBounds), [&](const EnvBounds& b) { return b.name == name; });
  const EnvBounds& bounds = found == std::end(kBounds) ? kAnyNumber : *found;
  const bool valid = value >= bounds.least && value <= bounds.most && (!bounds.whole || value == std::floor(value));
  return valid ? nullptr : bounds.text;
}

void check_env_value(const std::string& where, const std::string& name, const std::string& value) {
  const EnvKey* key = find_key(name);
  if (key == nullptr || value.empty()) return;
  if (key->kind == number) {
    const auto given = to_number(value);
    if (const char* problem = env_number_problem(name, given ? *given : -1))
      fail(ErrorCode::usage, "{}: {}={}: {}", where, name, value, problem);
  }
  if (key->kind == flag && !is_flag_word(value)) fail(ErrorCode::usage, "{}: {}={}: use 1 or 0", where, name, value);
}

std::vector<std::string> load_env_file(const std::string& path, const std::vector<std::string>& flags) {
  std::ifstream in(path, std::ios::binary);
  std::error_code ec;
  if (!in.is_open() || std::filesystem::is_directory(path, ec))
    fail(ErrorCode::usage, "--env-file {}: cannot be read: {}", path, std::strerror(in.is_open() ? EISDIR : errno));
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto entries = parse_env_text(bytes, path);
  const KnownVariables known(flags);
  std::vector<std::string> notes;
  std::vector<const EnvEntry*> taken;
  for (const EnvEntry& e : entries) {
    const std::string where = fmt::format("{}:{}", path, e.line);
    if (known.knows(e.name)) {
      if (KnownVariables::ours(e.name) && !taken_from_file(e.name))
        fail(ErrorCode::usage, "{}: {} cannot be set in a file; {}set it in the environment", where, e.name,
             contains(flags, e.name) ? "use " + flag_of(e.name) + " or " : "");
      check_env_value(where, e.name, e.value);
      taken.push_back(&e);
      continue;
    }
    if (contains(kOthersNotFromFile, e.name)) {
      notes.push_back(fmt::format("{}: {} is ignored in a file; set it in the environment", where, e.name));
      continue;
    }
    const bool ours = KnownVariables::ours(e.name);
    const std::string near = known.nearest(e.name), what = fmt::format("{}: {}", where, unknown(e.name, near));
    if (ours && !near.empty()) fail(ErrorCode::usage, "{}", what);
    if (ours || !near.empty()) notes.push_back(what + "; it is ignored");
  }
  // The last line of a key wins, as in a shell; the process environment wins over the file.
  file_keys() = {path, {}};
  for (auto e = taken.rbegin(); e != taken.rend(); ++e) {
    set_env_default((*e)->name, (*e)->value);
    if (find_key((*e)->name) != nullptr && !(*e)->value.empty()) file_keys().values.emplace((*e)->name, (*e)->value);
  }
  return notes;
}

bool taken_from_file(std::string_view variable) { return contains(kFromFile, variable); }
std::span<const std::string_view> variables_not_from_file() { return kNotFromFile; }

std::optional<std::string> env_file_value(const char* name) {
  const auto found = file_keys().values.find(name);
  return found == file_keys().values.end() ? std::nullopt : std::optional(found->second);
}

bool reads_plain_keys(std::string_view verb) {
  return verb == "serve" || verb == "monitor" || verb == "profile" || verb == "plan";
}

std::string unused_keys_note(std::string_view verb, bool uses_model_name) {
  std::string names;
  for (const auto& [name, value] : file_keys().values)
    if (!uses_model_name || name != "SENTIMENT_MODEL_NAME") names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "" : fmt::format("{}: not used by brim {}: {}", file_keys().path, verb, names);
}

std::span<const char* const> program_variables() { return kProgramVariables; }

std::vector<std::string> misspelt_environment(const std::vector<std::string>& flags) {
  const KnownVariables known(flags);
  std::vector<std::string> notes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable(*entry);
    const std::string name(variable.substr(0, variable.find('=')));
    if (!KnownVariables::ours(name) || known.knows(name) || name == "BRIM_TESTS")
      continue;  // BRIM_TESTS is set by the test launcher
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
    notes.push_back(fmt::format("{}={}: ignored: {}", key.name, *value, key.help));
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
