// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "serve/queue_journal.h"
#include "serve/queue_state.h"

// Any bytes are some whole records and a tail; the records read again as they are. Each is a change of a queue or
// refused; what comes of them survives a compaction.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim;
  using namespace brim::serve;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto content = QueueJournal::read(bytes);
  std::string again;
  for (const auto record : content.records) again += QueueJournal::frame(record);
  if (again != bytes.substr(0, content.bytes)) std::abort();
  const auto snapshot_text = [](const QueueState& state) {
    std::string text;
    for (const auto& record : state.snapshot(0, "q")) text += text_of(record) + "\n";
    return text;
  };
  QueueState state;
  // Damage hides behind checksums, so lines that stand for records are tried too.
  std::vector<std::string> payloads(content.records.begin(), content.records.end());
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    payloads.push_back(bytes.substr(at, end - at));
    at = end + 1;
  }
  for (const std::string& payload : payloads) {
    try {
      state.apply(parse_record(payload));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::bad_data) std::abort();
    }
  }
  QueueState replayed;
  for (const auto& record : state.snapshot(0, "q")) replayed.apply(record);
  if (snapshot_text(replayed) != snapshot_text(state)) std::abort();
  return 0;
}
