// SPDX-License-Identifier: Apache-2.0
// A command of the command line: name, flags and function. Each command has its own file; main.cc lists them.
#pragma once
#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace brim::cli {

struct Verb {
  const char* name;
  const char* summary;
  // Adds the flags to `app` and returns the function to run after parsing; its result is the exit code.
  std::function<int()> (*setup)(CLI::App& app);
};

std::function<int()> setup_score(CLI::App& app);
std::function<int()> setup_eval(CLI::App& app);
std::function<int()> setup_embed(CLI::App& app);
std::function<int()> setup_tokenize(CLI::App& app);
std::function<int()> setup_models(CLI::App& app);
std::function<int()> setup_pull(CLI::App& app);
std::function<int()> setup_monitor(CLI::App& app);
std::function<int()> setup_train(CLI::App& app);
std::function<int()> setup_plan(CLI::App& app);
std::function<int()> setup_profile(CLI::App& app);
std::function<int()> setup_tune(CLI::App& app);
std::function<int()> setup_doctor(CLI::App& app);
std::function<int()> setup_compare(CLI::App& app);
std::function<int()> setup_bench(CLI::App& app);
std::function<int()> setup_shards(CLI::App& app);
std::function<int()> setup_forecast(CLI::App& app);
std::function<int()> setup_serve(CLI::App& app);  // only if built with Boost, like the next
std::function<int()> setup_queue(CLI::App& app);

// The state of a `brim score --shard` job in `folder`: `what` is status, missing or check.
bool is_shard_report(const std::string& shard);
int report_shards(const std::string& what, const std::string& folder);

// Adds an environment variable for every long flag: BRIM_MEMORY_LIMIT for --memory-limit.
void add_environment(CLI::App& verb);

// Internal command for a child process; `words` are DEVICE, PRECISION and LIMIT in bytes.
int run_measure_card(const std::vector<std::string>& words);

// Set by SIGINT, SIGTERM and SIGHUP after stop_on_signals(). Before that they end the process at once, and so does a
// signal that arrives a second or more after the first.
const std::atomic<bool>& stop_requested();
void stop_on_signals();

}  // namespace brim::cli
