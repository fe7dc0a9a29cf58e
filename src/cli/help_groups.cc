// SPDX-License-Identifier: Apache-2.0
#include "cli/help_groups.h"

#include <utility>
#include <vector>

namespace brim::cli {
namespace {

constexpr const char *kDevice = "device precision memory-limit leave-free threads",
                     *kSeries = "data layout id-column time-column target-column freq gaps";

const std::vector<std::pair<std::string_view, std::vector<HelpGroup>>>& all_groups() {
  static const std::vector<std::pair<std::string_view, std::vector<HelpGroup>>> groups = {
      {"score",
       {{"Input", "text-column pair-column format on-error"},
        {"Output", "output output-format all-scores resume shard summary-json"},
        {"Model", "model max-length long-text"},
        {"Device", kDevice},
        {"Other", "config quiet"}}},
      {"eval",
       {{"Input", "text-column pair-column label-column format"},
        {"Output", "json"},
        {"Model", "model max-length long-text"},
        {"Device", kDevice},
        {"Other", "quiet"}}},
      {"embed",
       {{"Input", "text-column format"},
        {"Output", "output normalize"},
        {"Model", "model pooling prompt-name max-length long-text"},
        {"Device", kDevice},
        {"Other", "quiet"}}},
      {"tokenize", {{"Input", "text-column format"}, {"Output", "output"}, {"Model", "model"}, {"Device", "threads"}}},
      {"compare",
       {{"Input", "data text-column pair-column label-column format"},
        {"Output", "json disagreements"},
        {"Models", "models max-loss max-length long-text"},
        {"Device", kDevice},
        {"Other", "quiet"}}},
      {"train",
       {{"Input", "train val text-column pair-column label-column format on-error"},
        {"Output", "output overwrite-output-dir resume-from-checkpoint save-strategy"},
        {"Model", "model task max-length teacher"},
        {"Training",
         "num-train-epochs max-steps batch-size learning-rate lr-scheduler-type warmup-ratio weight-decay "
         "class-weights seed"},
        {"Evaluation", "eval-strategy metric-for-best-model early-stopping-patience"},
        {"Device", kDevice},
        {"Other", "config quiet"}}},
      {"plan",
       {{"Model", "model task config serve? typical-length max-length"},
        {"Training", "batch-size learning-rate lr-scaling lr-reference-batch optim recompute"},
        {"Forecasting", "data horizon preset folds"},
        {"Device", "device vram precision memory-limit leave-free threads measure"},
        {"Output", "json"}}},
      {"profile",
       {{"Input", "texts text-column label-column"},
        {"Output", "output-dir json baseline"},
        {"Models", "mode model batch-sizes sizes seconds max-length"},
        {"Language model", "llm-url llm-model llm-api llm-key"},
        {"Device", kDevice},
        {"Other", "quiet"}}},
      {"serve",
       {{"Models", "model embedding-model pooling max-length long-text config"},
        {"Network", "listen allowed-host cors-allow-origin trusted-proxy tls-cert tls-key"},
        {"Access", "api-key-file api-key insecure"},
        {"Load", "max-queue-ms max-concurrent-requests max-client-batch-size payload-limit"},
        {"Memory", "keep-alive release-device-after parked-limit"},
        {"Queues and jobs", "state-dir jobs-root keep-jobs"},
        {"Device", kDevice},
        {"Other", "access-log check quiet"}}},
      {"tune", {{"Model", "model max-length long-text"}, {"Device", kDevice}, {"Other", "seconds quiet"}}},
      {"bench", {{"Input", "texts"}, {"Model", "model max-length long-text"}, {"Device", kDevice}, {"Other", "quiet"}}},
      {"forecast train",
       {{"Input", kSeries},
        {"Output", "output"},
        {"Model", "horizon preset lookbacks losses repeats level season"},
        {"Training", "max-steps epochs batch-size learning-rate early-stop-patience-steps random-seed"},
        {"Device", kDevice},
        {"Other", "config quiet"}}},
      {"forecast roll",
       {{"Input", kSeries},
        {"Output", "output keep-models extend"},
        {"Backtest", "horizon folds step refit window gap warm warm-steps"},
        {"Model", "preset lookbacks losses repeats level season"},
        {"Training", "max-steps epochs batch-size learning-rate random-seed"},
        {"Device", kDevice},
        {"Other", "config quiet"}}},
      {"forecast predict",
       {{"Input", kSeries},
        {"Output", "output components"},
        {"Model", "model horizon season"},
        {"Device", kDevice},
        {"Other", "config quiet"}}},
      {"forecast eval",
       {{"Input", "data actual layout id-column time-column target-column freq gaps"},
        {"Output", "json"},
        {"Model", "model forecast season"},
        {"Device", kDevice},
        {"Other", "config quiet"}}},
  };
  return groups;
}

}  // namespace

std::span<const HelpGroup> help_groups(std::string_view command) {
  for (const auto& [name, groups] : all_groups())
    if (name == command) return groups;
  return {};
}

}  // namespace brim::cli
