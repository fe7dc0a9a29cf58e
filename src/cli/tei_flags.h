// SPDX-License-Identifier: Apache-2.0
// Flags of text-embeddings-inference for `brim serve`, so that its command lines work. Flags with an equivalent are
// applied; the others are rejected with the alternative.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace brim::cli {

// Help group of these flags. They have no environment variables: Kubernetes sets BRIM_PORT for a service named brim.
inline constexpr const char* kTeiGroup = "Compatible with text-embeddings-inference";

struct TeiFlags {
  std::string served_model_name, hostname, dtype, auto_truncate;
  int64_t port = -1, tokenization_workers = 0;

  void add_to(CLI::App& app);
  std::optional<std::string> listen() const;     // from hostname and port
  std::optional<std::string> precision() const;  // from dtype
  std::optional<bool> truncates() const;
};

}  // namespace brim::cli
