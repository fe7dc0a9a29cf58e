// SPDX-License-Identifier: Apache-2.0
#include "train/run_settings.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/units.h"
#include "io/yaml_file.h"

namespace brim::train {
namespace {

bool among(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Values of a list; nested lists are joined by commas, and by semicolons between lists.
std::vector<std::string> elements_of(const YAML::Node& list) {
  std::vector<std::string> elements;
  for (const auto& element : list)
    elements.push_back(element.IsSequence() ? fmt::format("{}", fmt::join(elements_of(element), ","))
                                            : element.as<std::string>());
  return elements;
}

class YamlWalk {
 public:
  YamlWalk(const YamlKeys& keys, std::string path) : keys_(keys), path_(std::move(path)) {}

  void map(const YAML::Node& map, bool top) {
    std::set<std::string> seen;
    if (top) shared_ = has_known_block(map);
    for (const auto& item : map) {
      const auto key = item.first.as<std::string>();
      where_ = fmt::format("{}:{}", path_, item.first.Mark().line + 1);
      if (!seen.insert(underscored(key)).second) fail(ErrorCode::usage, "{}: duplicate key {}", where_, key);
      value(key, item.second, top);
    }
  }

  std::vector<std::string> notes() {
    if (!foreign_.empty())
      notes_.push_back(fmt::format("{}: ignored {} of other programs: {}", path_,
                                   foreign_.size() == 1 ? "a key" : "keys", fmt::join(foreign_, ", ")));
    return std::move(notes_);
  }

 private:
  bool has_known_block(const YAML::Node& map) const {
    return std::any_of(map.begin(), map.end(), [&](const auto& item) {
      return item.second.IsMap() && among(item.first.template as<std::string>(), keys_.blocks);
    });
  }

  void value(const std::string& key, const YAML::Node& value, bool top) {
    const bool block = among(key, keys_.blocks);
    const SettingInfo* row = keys_.find(key);
    if (row != nullptr && row->ignored) {
      notes_.push_back(keys_.apply(key, value.IsScalar() ? value.Scalar() : "", where_));
    } else if (value.IsMap() && block) {
      map(value, false);
    } else if (value.IsMap()) {
      other_block(key, top);
    } else if (row == nullptr && top && !block && shared_ && keys_.foreign && keys_.nearest(key).empty()) {
      foreign_.push_back(key);
    } else if (block && row == nullptr && !value.IsNull()) {
      fail(ErrorCode::usage, "{}: {} is a block; put its keys below it, indented", where_, key);
    } else if (value.IsSequence()) {
      list(key, value, row);
    } else if (!value.IsNull()) {
      if (std::string note = keys_.apply(key, value.as<std::string>(), where_); !note.empty()) notes_.push_back(note);
    }
  }

  void other_block(const std::string& key, bool top) {
    const std::string near = nearest_name(key, keys_.blocks);
    if (keys_.foreign && top && near.empty()) {
      foreign_.push_back(key);
      return;
    }
    fail(ErrorCode::usage, "{}: unknown block {}{}", where_, key,
         near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }

  void list(const std::string& key, const YAML::Node& value, const SettingInfo* row) {
    std::vector<std::string> elements = elements_of(value);
    const bool nested = value.size() > 0 && value[0].IsSequence();
    if (among(underscored(key), keys_.joined)) elements = {fmt::format("{}", fmt::join(elements, nested ? ";" : ","))};
    for (const auto& element : elements)
      if (std::string note = keys_.apply(key, element, where_); !note.empty()) notes_.push_back(note);
    if (elements.size() > 1 && !row->is_list) fail(ErrorCode::usage, "{}: {} takes one value, not a list", where_, key);
  }

  const YamlKeys& keys_;
  std::string path_, where_;
  std::vector<std::string> notes_, foreign_;
  bool shared_ = false;  // the file has a known block, so its other keys may belong to other programs
};

}  // namespace

void RunSettings::note_origin(std::string_view key, std::string_view value, const std::string& where) {
  if (const std::string name = underscored(key); name == "memory_limit" || name == "max_memory_gb")
    limit_origin = where.empty() ? plan::LimitOrigin{} : plan::LimitOrigin{where, name, std::string(value)};
}

const SettingInfo* find_info(const std::vector<SettingInfo>& infos, std::string_view key) {
  const auto found =
      std::find_if(infos.begin(), infos.end(), [&](const SettingInfo& i) { return i.name == underscored(key); });
  return found == infos.end() ? nullptr : &*found;
}

std::vector<std::string> apply_yaml(const YamlKeys& keys, const std::filesystem::path& path) {
  const YAML::Node root = io::load_yaml(path);
  YamlWalk walk(keys, path.string());
  try {
    walk.map(root, true);
  } catch (const YAML::Exception& e) {  // a block instead of a value
    fail(ErrorCode::usage, "{}:{}: {}", path.string(), e.mark.line + 1, e.msg);
  }
  return walk.notes();
}

}  // namespace brim::train
