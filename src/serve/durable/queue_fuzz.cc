// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "serve/durable/queue_journal.h"
#include "serve/durable/queue_state.h"

// Fuzz target: journals. Bytes are intact records, damage and a tail. Each record changes the queue or is rejected, and
// the resulting state survives a compaction.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim;
  using namespace brim::serve;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto content = QueueJournal::read(bytes);
  std::string rebuilt;
  auto damage = content.damage.begin();
  for (size_t i = 0; i <= content.records.size(); ++i) {
    bool recovered = false;
    for (; damage != content.damage.end() && damage->before == i; ++damage) {
      recovered = damage->recovered;
      rebuilt += damage->bytes;
    }
    if (i < content.records.size() && !recovered) rebuilt += QueueJournal::frame(content.records[i]);
  }
  if (rebuilt.size() < content.bytes || rebuilt != bytes.substr(0, rebuilt.size())) std::abort();
  const auto snapshot_text = [](const QueueState& state) {
    std::string text;
    for (const auto& record : state.snapshot(0, "q")) text += text_of(record) + "\n";
    return text;
  };
  QueueState state;
  if (!content.damage.empty()) state.skip_damaged(content.damage[0].bytes, content.damage[0].records);
  // Mutations rarely keep checksums valid, so lines are tried as records too.
  std::vector<std::string> payloads(content.records.begin(), content.records.end());
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    payloads.push_back(bytes.substr(begin, end - begin));
    begin = end + 1;
  }
  for (const std::string& payload : payloads) {
    try {
      state.apply(parse_record(payload));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::bad_data) std::abort();
    }
  }
  state.end_replay(0);
  QueueState replayed;
  for (const auto& record : state.snapshot(0, "q")) replayed.apply(record);
  if (snapshot_text(replayed) != snapshot_text(state)) std::abort();
  return 0;
}
