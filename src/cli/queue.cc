// SPDX-License-Identifier: Apache-2.0
// brim queue repair DIR: finds and repairs damaged queue journals of a stopped server. Does not touch running servers.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "base/error.h"
#include "base/units.h"
#include "cli/verb.h"
#include "serve/durable/queue_repair.h"

namespace brim::cli {
namespace {

struct QueueFlags {
  std::string state_dir;
  bool apply = false;
};

std::string count_of(size_t value, std::string_view noun) { return format_count(static_cast<int64_t>(value), noun); }

void print_report(const serve::JournalReport& report) {
  fmt::print("{}\n", report.journal.string());
  if (!report.problem.empty()) {
    fmt::print("  cannot be repaired: {}\n", report.problem);
    return;
  }
  fmt::print("  {}, {} damaged\n", count_of(report.records, "intact record"), serve::count_damaged(report.damage));
  for (const serve::JournalDamage& damage : report.damage)
    fmt::print("  offset {}: {}, {}\n", damage.offset, count_of(damage.bytes.size(), "damaged byte"),
               damage.recovered ? "wrong length field, record recovered" : "not readable");
  if (report.torn_bytes > 0)
    fmt::print("  {} of an unfinished write at the end\n", count_of(report.torn_bytes, "byte"));
  fmt::print("  {}, {}, next flush id {}\n", count_of(report.waiting, "waiting item"),
             fmt::format("flushes kept: {}", report.flushes), report.next_flush);
  if (!report.kept.empty()) fmt::print("  repaired; the original is kept as {}\n", report.kept.string());
}

int run_repair(const QueueFlags& f) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  bool damaged = false, failed = false;
  const auto reports = serve::repair_queues(f.state_dir, f.apply, now_ms);
  for (const serve::JournalReport& report : reports) {
    print_report(report);
    damaged = damaged || (!report.damage.empty() && report.kept.empty());
    failed = failed || !report.problem.empty();
  }
  if (reports.empty()) fmt::print("{}: no journals\n", f.state_dir);
  if (damaged && !f.apply) fmt::print("nothing was written; run with --apply to repair\n");
  return damaged || failed ? exit_code(ErrorCode::bad_data) : 0;
}

}  // namespace

std::function<int()> setup_queue(CLI::App& app) {
  auto f = std::make_shared<QueueFlags>();
  CLI::App* repair = app.add_subcommand("repair", "find damaged queue journals of a stopped server, and repair them");
  repair->add_option("dir", f->state_dir, "the server's state directory (--state-dir)")->required();
  repair->add_flag("--apply", f->apply, "write repaired journals and keep the originals (default: report only)");
  app.require_subcommand(1);
  return [f] { return run_repair(*f); };
}

}  // namespace brim::cli
