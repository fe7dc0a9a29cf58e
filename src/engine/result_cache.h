// SPDX-License-Identifier: Apache-2.0
// Results of earlier texts, for the models of one device queue, in bounded host memory. Entries are found by their
// whole key, which names the model, the options and the text. Does not create keys.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "brim/brim.h"
#include "memory/ledger.h"

namespace brim::engine {

// Thread-safe. The least recently used results are replaced first.
class ResultCache {
 public:
  // `reservation`: of these bytes if they count towards the device's limit, else empty.
  explicit ResultCache(int64_t most_bytes, memory::Reservation reservation = {})
      : most_bytes_(most_bytes), reservation_(std::move(reservation)) {}
  std::shared_ptr<const Prediction> find(std::string_view key);  // null: none
  void put(std::string key, Prediction prediction);              // not for errors
  int64_t most_bytes() const { return most_bytes_; }
  int64_t bytes() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Prediction> prediction;
    int64_t bytes = 0;
  };
  const int64_t most_bytes_;
  const memory::Reservation reservation_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;                                                 // the most recently used is first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> places_;  // keys are views of entries_
  int64_t bytes_ = 0;
};

// Appends a value to a key so that different sequences of values give different keys.
void append_key(std::string& key, std::string_view text);
void append_key(std::string& key, int64_t number);

}  // namespace brim::engine
