// SPDX-License-Identifier: Apache-2.0
// brim pull, and --pull of the commands that open models: download a model into the Hugging Face cache. Only these,
// `profile`, `doctor --url` and `bench serve --url` connect to another machine.
#include "cli/pull.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/verb.h"
#include "hub/model_dir.h"
#include "hub/model_download.h"
#include "net/pull.h"

namespace brim::cli {
namespace {

struct PullFlags {
  std::string repository, max_size = "20GiB";
  std::vector<std::string> include;
  bool allow_pickle = false, quiet = false;
};

std::filesystem::path download(net::PullOptions options, bool quiet) {
  options.cache = hub::model_search_path(hub::model_roots()).hub;
  options.stop = &stop_requested();
  Progress progress("pulling", STDERR_FILENO, quiet);
  options.on_progress = [&](int64_t done, int64_t total, const std::string& file) {
    progress.update({static_cast<double>(done), static_cast<double>(total),
                     fmt::format("{} of {} · {}", format_bytes(done), format_bytes(total), file)});
  };
  const net::PullReport report = pull(options);
  progress.finish();
  if (!quiet)
    print_stderr("{}: {} · {} · {} downloaded\n", options.repository,
                 format_count(static_cast<int64_t>(report.files), "file"), format_bytes(report.bytes),
                 format_bytes(report.downloaded));
  return report.directory;
}

int run_pull(const PullFlags& flags) {
  stop_on_signals();
  net::PullOptions options = net::pull_options_from_env();
  options.repository = hub::hub_name(flags.repository);
  options.include = flags.include;
  options.allow_pickle = flags.allow_pickle;
  const std::optional<int64_t> max_bytes = parse_bytes(flags.max_size);
  if (!max_bytes) fail(ErrorCode::usage, "--max-size '{}': use a size such as 20GiB", flags.max_size);
  options.max_bytes = *max_bytes;
  fmt::print("{}\n", download(options, flags.quiet).string());
  return 0;
}

}  // namespace

std::function<int()> setup_pull(CLI::App& app) {
  auto flags = std::make_shared<PullFlags>();
  app.add_option("repository", flags->repository, "ORG/NAME or ORG/NAME@REVISION")->required();
  app.add_option("--include", flags->include, "download files that match this pattern, instead of those Brim reads");
  app.add_flag("--allow-pickle", flags->allow_pickle, "download pytorch_model.bin if there is no model.safetensors");
  app.add_option("--max-size", flags->max_size, "reject larger downloads")->capture_default_str();
  app.add_flag("-q,--quiet", flags->quiet, "print no progress and no summary");
  return [flags] { return run_pull(*flags); };
}

void add_pull_flag(CLI::App& verb) {
  if (verb.get_name() == "forecast") return;  // forecasting models are not on hubs
  for (CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; })) add_pull_flag(*inner);
  for (const char* name : {"--model", "--models", "model"})
    if (verb.get_option_no_throw(name) != nullptr) {
      verb.add_flag("--pull")->description("download models that are not on this machine, as `brim pull` does");
      return;
    }
}

void apply_pull_flag(const CLI::App& given) {
  const CLI::Option* flag = given.get_option_no_throw("--pull");
  if (flag == nullptr || flag->count() == 0 || !flag->as<bool>()) return;
  const CLI::Option* quiet = given.get_option_no_throw("--quiet");
  const bool is_quiet = quiet != nullptr && quiet->count() > 0;
  hub::set_model_download([is_quiet](const std::string& repository) {
    net::PullOptions options = net::pull_options_from_env();
    options.repository = repository;
    return download(options, is_quiet);
  });
}

}  // namespace brim::cli
