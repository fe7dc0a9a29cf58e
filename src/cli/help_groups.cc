// SPDX-License-Identifier: Apache-2.0
#include "cli/help_groups.h"

#include <algorithm>
#include <iterator>

namespace brim::cli {
namespace {

constexpr const char *kDevice = "device precision memory-limit leave-free threads",
                     *kZeroShot = "labels labels-file template multi-label",
                     *kEntities = "entities entities-file threshold nested?",
                     *kSeries = "data layout id-column time-column target-column freq gaps",
                     *kCovariates = "future-columns past-columns static-columns categorical calendar";

struct CommandHelp {
  std::string_view command;
  HelpGroup groups[8];
};

constexpr CommandHelp kCommands[] = {
    {"score",
     {{"Input", "text-column pair-column format on-error"},
      {"Output", "output output-format all-scores resume shard summary-json"},
      {"Model", "model adapter pull max-length long-text"},
      {"Zero-shot", kZeroShot},
      {"Entities by label", kEntities},
      {"Device", kDevice},
      {"Other", "config quiet"}}},
    {"eval",
     {{"Input", "text-column pair-column label-column format"},
      {"Output", "json"},
      {"Model", "model adapter pull max-length long-text"},
      {"Zero-shot", kZeroShot},
      {"Entities by label", kEntities},
      {"Device", kDevice},
      {"Other", "quiet"}}},
    {"embed",
     {{"Input", "text-column format"},
      {"Output", "output normalize"},
      {"Model", "model adapter pull pooling prompt-name max-length long-text"},
      {"Device", kDevice},
      {"Other", "quiet"}}},
    {"tokenize", {{"Input", "text-column format"}, {"Output", "output"}, {"Model", "model"}, {"Device", "threads"}}},
    {"compare",
     {{"Input", "data text-column pair-column label-column format"},
      {"Output", "json disagreements"},
      {"Models", "models adapter pull max-loss max-length long-text"},
      {"Zero-shot", kZeroShot},
      {"Device", kDevice},
      {"Other", "quiet"}}},
    {"train",
     {{"Input", "train val text-column pair-column label-column format on-error"},
      {"Output", "output overwrite-output-dir resume-from-checkpoint save-strategy"},
      {"Model", "model pull task max-length teacher labels"},
      {"Training",
       "num-train-epochs max-steps batch-size learning-rate lr-scheduler-type warmup-ratio weight-decay "
       "class-weights lora-r seed"},
      {"Evaluation", "eval-strategy metric-for-best-model early-stopping-patience"},
      {"Device", kDevice},
      {"Other", "config quiet"}}},
    {"plan",
     {{"Model", "model adapter pull task config serve? typical-length max-length"},
      {"Zero-shot", kZeroShot},
      {"Entities by label", "entities entities-file"},
      {"Training",
       "batch-size learning-rate lr-scaling lr-reference-batch optim freeze lora-r lora-targets recompute teacher"},
      {"Forecasting", "data horizon preset folds"},
      {"Device", "device vram precision memory-limit leave-free threads measure"},
      {"Output", "json"}}},
    {"profile",
     {{"Input", "texts text-column label-column"},
      {"Output", "output-dir json baseline"},
      {"Models", "mode model pull batch-sizes sizes seconds max-length"},
      {"Language model", "llm-url llm-model llm-api llm-key"},
      {"Device", kDevice},
      {"Other", "quiet"}}},
    {"serve",
     {{"Models", "model adapter embedding-model pull pooling max-length long-text config"},
      {"Network", "listen allowed-host cors-allow-origin trusted-proxy tls-cert tls-key"},
      {"Access", "api-key-file api-key insecure"},
      {"Load", "max-queue-ms max-concurrent-requests max-client-batch-size payload-limit"},
      {"Memory", "keep-alive release-device-after parked-limit cache"},
      {"Queues and jobs", "state-dir jobs-root keep-jobs"},
      {"Device", kDevice},
      {"Other", "access-log check quiet"}}},
    {"profile streams", {{"Input", "texts"}, {"Models", "models pull seconds"}, {"Device", kDevice}}},
    {"profile latency", {{"Input", "texts count"}, {"Model", "model pull"}, {"Device", kDevice}}},
    {"profile library", {{"Input", "texts callers rounds"}, {"Model", "model pull"}, {"Device", kDevice}}},
    {"profile deterministic", {{"Input", "texts count rounds"}, {"Model", "model pull"}, {"Device", kDevice}}},
    {"models tune",
     {{"Model", "model adapter pull max-length long-text"}, {"Device", kDevice}, {"Other", "seconds quiet"}}},
    {"tune", {{"Model", "model adapter pull max-length long-text"}, {"Device", kDevice}, {"Other", "seconds quiet"}}},
    {"bench",
     {{"Input", "texts"},
      {"Model", "model adapter pull max-length long-text"},
      {"Device", kDevice},
      {"Other", "quiet"}}},
    {"forecast train",
     {{"Input", kSeries},
      {"Output", "output"},
      {"Covariates", kCovariates},
      {"Model", "horizon preset lookbacks losses repeats level season"},
      {"Training", "max-steps epochs batch-size learning-rate early-stop-patience-steps random-seed"},
      {"Device", kDevice},
      {"Other", "config quiet"}}},
    {"forecast roll",
     {{"Input", kSeries},
      {"Output", "output keep-models extend"},
      {"Covariates", kCovariates},
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

}  // namespace

std::span<const HelpGroup> help_groups(std::string_view command) {
  for (const CommandHelp& help : kCommands) {
    if (help.command != command) continue;
    const auto* end = std::find_if(std::begin(help.groups), std::end(help.groups),
                                   [](const HelpGroup& group) { return group.title == nullptr; });
    return {std::begin(help.groups), end};
  }
  return {};
}

}  // namespace brim::cli
