// SPDX-License-Identifier: Apache-2.0
// Names in order of first appearance. Adding a name costs one lookup, independent of the number of names.
#pragma once
#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace brim::rows {

template <class Equal = std::equal_to<std::string>>
class FirstSeen {
 public:
  void add(const std::string& name) {
    if (known_.insert(name).second) names_.push_back(name);
  }
  std::vector<std::string> take() { return std::move(names_); }

 private:
  std::unordered_set<std::string, std::hash<std::string>, Equal> known_;
  std::vector<std::string> names_;
};

}  // namespace brim::rows
