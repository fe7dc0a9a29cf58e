// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "serve/time_zone.h"

// Fuzz target: zone files. Any bytes are a zone or an error; a zone answers consistently for any time.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim;
  try {
    const auto zone = serve::TimeZone::parse({reinterpret_cast<const char*>(data), size}, "zone");
    for (const int64_t t :
         {INT64_MIN, int64_t{-3'000'000'000}, int64_t{0}, int64_t{1'800'000'000}, int64_t{5'000'000'000}, INT64_MAX}) {
      const int64_t offset = zone.offset_at(t);
      const auto next = zone.next_change(t);
      if (next && (*next <= t || zone.offset_at(*next) == offset)) std::abort();
      for (const int64_t moment : zone.moments_of(t))
        if (zone.local(moment) != t) std::abort();
    }
  } catch (const Error& e) {
    if (e.code() != ErrorCode::bad_data) std::abort();
  }
  return 0;
}
