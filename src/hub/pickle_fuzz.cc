// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: parses arbitrary bytes as a pickle. Every index in an accepted table must be valid.
#include <cstdlib>

#include "base/error.h"
#include "hub/pickle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static constexpr std::string_view kKnown[] = {"collections OrderedDict", "torch make"};
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const brim::hub::Pickle pickle = brim::hub::parse_pickle(bytes, kKnown, "fuzz");
    if (pickle.bytes_read > size) std::abort();
    for (const brim::hub::PickleValue& value : pickle.values) {
      if (value.kind == brim::hub::PickleValue::Kind::dict && value.items.size() % 2 != 0) std::abort();
      for (const int32_t id : value.items)
        if (id < 0 || static_cast<size_t>(id) >= pickle.values.size()) std::abort();
    }
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
