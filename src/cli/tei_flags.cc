// SPDX-License-Identifier: Apache-2.0
#include "cli/tei_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/error.h"

namespace brim::cli {
namespace {

struct Missing {
  const char* flag;
  const char* why;
};
constexpr const char* kLogs =
    "unsupported, the log is plain text and spans are not sent; use --access-log FILE for requests";
constexpr const char* kPrompts = "unsupported; add the prompt to the texts";
constexpr Missing kMissing[] = {
    {"--revision", "unsupported; use --model ORG/NAME@REVISION --pull"},
    {"--hf-token,--hf-api-token", "unsupported; set HF_TOKEN in the environment"},
    {"--huggingface-hub-cache", "unsupported; set HF_HUB_CACHE in the environment"},
    {"--max-batch-requests", "unsupported, batches are limited by tokens; use --max-batch-tokens"},
    {"--default-prompt", kPrompts},
    {"--default-prompt-name", kPrompts},
    {"--dense-path", "unsupported, models with a dense layer after pooling cannot be loaded"},
    {"--uds-path", "unsupported, there is no second process; use --listen unix:PATH for clients"},
    {"--prometheus-port", "unsupported, /metrics is served on the port of all routes"},
    {"--json-output", kLogs},
    {"--disable-spans", kLogs},
    {"--otlp-endpoint", kLogs},
    {"--otlp-service-name", kLogs},
};

}  // namespace

void TeiFlags::add_to(CLI::App& app) {
  const std::string group = kTeiGroup;
  app.add_option("--served-model-name", served_model_name, "name of the first model, like --model NAME=MODEL")
      ->group(group);
  app.add_option("--hostname", hostname, "host to listen on, with --port (default: 127.0.0.1)")->group(group);
  app.add_option("-p,--port", port, "port to listen on (default: 8080)")->check(CLI::Range(0, 65535))->group(group);
  app.add_option("--dtype", dtype, "float32, float16 or bfloat16, like --precision fp32, fp16 or bf16")
      ->check(CLI::IsMember({"float32", "float16", "bfloat16"}))
      ->group(group);
  app.add_option("--auto-truncate", auto_truncate, "false: reject texts that are too long, like --long-text error")
      ->expected(0, 1)
      ->default_str("true")
      ->check(CLI::IsMember({"true", "false"}))
      ->group(group);
  app.add_option("--tokenization-workers", tokenization_workers, "same as --io-threads")
      ->check(CLI::Range(1, 64))
      ->group(group);
  for (const Missing& missing : kMissing) {
    const std::string_view names = missing.flag;
    const std::string flag(names.substr(0, names.find(',')));
    app.add_option_function<std::vector<std::string>>(
           missing.flag,
           [flag, why = missing.why](const std::vector<std::string>&) { fail(ErrorCode::usage, "{}: {}", flag, why); },
           "refused")
        ->expected(0, 1)
        ->group("");  // not in --help
  }
}

std::optional<std::string> TeiFlags::listen() const {
  if (hostname.empty() && port < 0) return std::nullopt;
  const std::string host = hostname.empty() ? "127.0.0.1" : hostname;
  const bool six = host.find(':') != std::string::npos && !host.starts_with('[');
  return fmt::format("{}:{}", six ? "[" + host + "]" : host, port < 0 ? 8080 : port);
}

std::optional<std::string> TeiFlags::precision() const {
  if (dtype.empty()) return std::nullopt;
  return dtype == "float32" ? "fp32" : dtype == "float16" ? "fp16" : "bf16";
}

std::optional<bool> TeiFlags::truncates() const {
  if (auto_truncate.empty()) return std::nullopt;
  return auto_truncate == "true";
}

}  // namespace brim::cli
