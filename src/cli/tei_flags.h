// SPDX-License-Identifier: Apache-2.0
// text-embeddings-inference's flags of `brim serve`, so that its command lines work: those that mean something here are
// taken, the others refused with what there is instead.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace brim::cli {

// Their group in --help. They are of the command line alone: BRIM_PORT is what Kubernetes sets for a service of our
// name.
inline constexpr const char* kTeiGroup = "As text-embeddings-inference has them";

struct TeiFlags {
  std::string served_model_name, hostname, dtype, auto_truncate;
  int64_t port = -1, tokenization_workers = 0;

  void add_to(CLI::App& app);
  std::optional<std::string> listen() const;     // of hostname and port
  std::optional<std::string> precision() const;  // of dtype
  std::optional<bool> truncates() const;
};

}  // namespace brim::cli
