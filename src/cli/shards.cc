// SPDX-License-Identifier: Apache-2.0
// State of a `brim score --shard` job: its progress, its missing shards, or a check of every part. Does not run shards.
#include "jobs/shards.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/verb.h"

namespace brim::cli {

bool is_shard_report(const std::string& shard) { return shard == "status" || shard == "missing" || shard == "check"; }

int report_shards(const std::string& what, const std::string& folder) {
  if (folder == "-") fail(ErrorCode::usage, "--shard {}: requires the output directory of the job (-o DIR)", what);
  const auto job = jobs::find_job(folder);
  if (!job)
    fail(ErrorCode::usage, "{}: no job in this directory; start one with `brim score … -o {} --shard I/N`", folder,
         folder);
  if (what == "check") {
    const int64_t rows = finish_job(*job);
    std::cout << fmt::format("{} in {}, all complete\n", format_count(rows, "row"),
                             format_count(static_cast<int64_t>(job->shards.size()), "part"));
    return 0;
  }
  const jobs::ShardStates states = shard_states(*job);
  if (what == "missing") {
    if (!states.missing.empty()) std::cout << jobs::id_ranges(states.missing) << "\n";
    return 0;
  }
  std::cout << fmt::format("{} of {} done\n", states.done.size(),
                           format_count(static_cast<int64_t>(job->shards.size()), "shard"));
  if (!states.missing.empty()) std::cout << fmt::format("missing {}\n", jobs::id_ranges(states.missing));
  for (const auto& [id, error] : states.failed) std::cout << fmt::format("failed {}: {}\n", id, error);
  return 0;
}

// The former command, which works for one more release.
std::function<int()> setup_shards(CLI::App& app) {
  struct ShardsFlags {
    std::string folder;
    bool check = false, missing = false;
  };
  auto f = std::make_shared<ShardsFlags>();
  app.add_option("folder", f->folder, "output directory (-o) of `brim score --shard`")->required();
  CLI::Option* check =
      app.add_flag("--check", f->check, "verify every part; if all are intact, write _manifest.json and _SUCCESS");
  app.add_flag("--missing", f->missing, "print only the missing shards, such as 3,17-20, as sbatch --array expects")
      ->excludes(check);
  return [f] {
    const char* const what = f->check ? "check" : f->missing ? "missing" : "status";
    log_warning("brim shards is deprecated; use `brim score -o {} --shard {}`", f->folder, what);
    return report_shards(what, f->folder);
  };
}

}  // namespace brim::cli
