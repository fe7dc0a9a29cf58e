// SPDX-License-Identifier: Apache-2.0
#include "hub/sentence_settings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "io/json_text.h"

namespace brim::hub {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kModules = "modules.json";
constexpr const char* kPrompts = "config_sentence_transformers.json";
// The first existing file is used, as in sentence-transformers.
constexpr const char* kLengthFiles[] = {"sentence_bert_config.json",       "sentence_roberta_config.json",
                                        "sentence_distilbert_config.json", "sentence_camembert_config.json",
                                        "sentence_albert_config.json",     "sentence_xlm-roberta_config.json",
                                        "sentence_xlnet_config.json"};

// True also for a broken link or a FIFO, so that reading it reports the problem instead of using defaults.
bool has_entry(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// One JSON object of settings.
class SettingsFile {
 public:
  explicit SettingsFile(const fs::path& path) : path_(path), values_(io::parse_json(read_file(path), path.string())) {
    if (!values_.is_object()) fail(ErrorCode::bad_model, "{}: not a JSON object", path_.string());
  }
  const json* find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() || found->is_null() ? nullptr : &*found;
  }
  const json& values() const { return values_; }
  [[noreturn]] void refuse(const std::string& key, const json& value, const char* why) const {
    fail(ErrorCode::bad_model, "{}: `{}` is {}: {}", path_.string(), key, value.dump(), why);
  }
  bool flag(const std::string& key, bool otherwise) const {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(key, *value, "must be true or false");
    return value->get<bool>();
  }
  int64_t count(const std::string& key) const {
    const json* value = find(key);
    if (value == nullptr) return 0;
    if (!value->is_number_integer() || value->get<double>() < 1 || value->get<double>() > 1e9)
      refuse(key, *value, "must be a positive integer");
    return value->get<int64_t>();
  }

 private:
  fs::path path_;
  json values_;
};

struct Module {
  std::string type;  // without the Python package: Transformer, Pooling, Normalize
  fs::path path;     // relative to the model's directory
};

std::vector<Module> read_modules(const fs::path& dir) {
  const fs::path file = dir / kModules;
  if (!has_entry(file)) return {};
  const json list = io::parse_json(read_file(file), file.string());
  const auto text = [](const json& module, const char* key) {
    const auto found = module.find(key);
    return found != module.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  std::vector<Module> modules;
  if (!list.is_array()) fail(ErrorCode::bad_model, "{}: not a JSON array", file.string());
  for (const json& module : list) {
    if (!module.is_object()) fail(ErrorCode::bad_model, "{}: {} is not a module", file.string(), module.dump());
    const std::string type = text(module, "type");
    const fs::path path = fs::path(text(module, "path")).lexically_normal();
    if (path.is_absolute() || path.string().starts_with(".."))
      fail(ErrorCode::bad_model, "{}: `path` is {}: must be inside the directory", file.string(),
           module["path"].dump());
    modules.push_back({type.substr(type.rfind('.') + 1), path == "." ? fs::path() : path});
  }
  return modules;
}

// Enabled pooling modes: pooling_mode_* flags, or `pooling_mode` with a name or a list of names.
std::vector<std::string> pooling_modes(const SettingsFile& config) {
  constexpr std::string_view prefix = "pooling_mode_";
  std::vector<std::string> modes;
  if (const json* named = config.find("pooling_mode")) {
    for (const json& name : named->is_array() ? *named : json::array({*named})) {
      if (!name.is_string()) config.refuse("pooling_mode", *named, "must be a string");
      modes.push_back(name.get<std::string>());
    }
    return modes;
  }
  for (const auto& [key, value] : config.values().items())
    if (key.starts_with(prefix) && config.flag(key, false)) modes.push_back(key.substr(prefix.size()));
  if (modes.empty()) modes.emplace_back("mean_tokens");  // as in sentence-transformers
  return modes;
}

void read_pooling(const fs::path& path, bool any_pooling, SentenceSettings& settings) {
  const SettingsFile config(path);
  settings.include_prompt = config.flag("include_prompt", true);
  const std::vector<std::string> modes = pooling_modes(config);
  if (modes.size() == 1 && (modes[0] == "mean_tokens" || modes[0] == "mean"))
    settings.pooling = SentenceSettings::Pooling::mean;
  else if (modes.size() == 1 && (modes[0] == "cls_token" || modes[0] == "cls"))
    settings.pooling = SentenceSettings::Pooling::cls;
  else if (!any_pooling)
    fail(ErrorCode::bad_model, Remedy{"set `pooling=mean` or `pooling=cls` to override it"},
         "{}: pooling mode {} is not supported", path.string(),
         modes.empty() ? "(none)" : fmt::format("{}", fmt::join(modes, " + ")));
  // Versions of sentence-transformers differ: the first token overall, or the first one after the prompt.
  if (!any_pooling && settings.pooling == SentenceSettings::Pooling::cls && !settings.include_prompt)
    config.refuse("include_prompt", false, "is not supported with cls pooling");
}

void read_prompts(const fs::path& path, SentenceSettings& settings) {
  const SettingsFile config(path);
  settings.truncate_dim = config.count("truncate_dim");
  if (const json* prompts = config.find("prompts")) {
    if (!prompts->is_object()) config.refuse("prompts", *prompts, "must be an object of strings");
    for (const auto& [name, prompt] : prompts->items()) {
      if (!prompt.is_string()) config.refuse("prompts", *prompts, "must be an object of strings");
      settings.prompts[name] = prompt.get<std::string>();
    }
  }
  const json* name = config.find("default_prompt_name");
  if (name == nullptr) return;
  if (!name->is_string() || !settings.prompts.contains(name->get<std::string>()))
    config.refuse("default_prompt_name", *name, "is not among `prompts`");
  settings.default_prompt_name = name->get<std::string>();
}

void read_length(const fs::path& dir, SentenceSettings& settings) {
  const auto* const file = std::find_if(std::begin(kLengthFiles), std::end(kLengthFiles),
                                        [&](const char* name) { return has_entry(dir / name); });
  if (file == std::end(kLengthFiles)) return;
  const SettingsFile config(dir / *file);
  settings.max_length = config.count("max_seq_length");
  settings.lower_case = config.flag("do_lower_case", false);
}

}  // namespace

const std::string& SentenceSettings::prompt(const std::string& name) const {
  static const std::string none;
  const std::string& chosen = name.empty() ? default_prompt_name : name;
  if (chosen.empty()) return none;
  if (const auto known = prompts.find(chosen); known != prompts.end()) return known->second;
  std::vector<std::string> names;
  for (const auto& [known, text] : prompts) names.push_back(known);
  fail(ErrorCode::usage, "unknown `prompt_name={}` (prompts of the model: {})", chosen,
       names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
}

SentenceSettings load_sentence_settings(const fs::path& dir, bool any_pooling) {
  SentenceSettings settings;
  const std::vector<Module> modules = read_modules(dir);
  if (modules.empty()) return settings;
  for (const Module& module : modules) {
    if (module.type == "Normalize") {
      settings.normalize = true;
    } else if (module.type == "Pooling") {
      read_pooling(dir / module.path / "config.json", any_pooling, settings);
    } else if (module.type != "Transformer") {
      fail(ErrorCode::bad_model, "{}: `type` is {}: the module is not supported", (dir / kModules).string(),
           module.type);
    } else if (!module.path.empty()) {
      fail(ErrorCode::bad_model, "{}: `path` is {}: the Transformer module must be in the directory itself",
           (dir / kModules).string(), module.path.string());
    }
  }
  read_length(dir, settings);
  if (has_entry(dir / kPrompts)) read_prompts(dir / kPrompts, settings);
  return settings;
}

std::vector<fs::path> sentence_files(const fs::path& dir) {
  std::vector<fs::path> files;
  const auto add = [&](const fs::path& file) {
    if (is_file(dir / file) && std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
  };
  try {
    for (const Module& module : read_modules(dir))
      if (!module.path.empty()) add(module.path / "config.json");
  } catch (const Error&) {  // reported by load_sentence_settings(); classifiers do not need the file
  }
  add(kModules);
  add(kPrompts);
  for (const char* name : kLengthFiles) add(name);
  return files;
}

void copy_sentence_files(const fs::path& from, const fs::path& to) {
  for (const fs::path& file : sentence_files(from)) {
    fs::create_directories((to / file).parent_path());
    io::write_file_atomically(to / file, read_file(from / file));
  }
}

}  // namespace brim::hub
