// SPDX-License-Identifier: Apache-2.0
// brim doctor: finds the bottleneck of a run and predicts the gain of each fix. Reads the trace of a run or runs the
// command itself; --apply writes the recommended settings, --verify runs again with them. Can also diagnose a server
// from its metrics. The rules are in jobs/doctor.h.
#include "jobs/doctor.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/settings.h"
#include "base/units.h"
#include "cli/render.h"
#include "cli/verb.h"
#include "io/atomic_file.h"
#include "io/compress.h"
#include "jobs/doctor_machine.h"
#include "jobs/doctor_server.h"
#include "net/http_client.h"

extern char** environ;

namespace brim::cli {

using jobs::RunTrace;
using jobs::SettingChange;

namespace {

struct DoctorFlags {
  std::string run, apply, url, api_key;
  std::vector<std::string> command;
  double seconds = 5;
  bool json = false, verify = false;
};

// Runs a command as a child process with the same input and output. It has its own process group, so that it gets each
// signal exactly once, from this process.
class Child {
 public:
  explicit Child(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {}

  // Throws if the run fails: there is nothing to diagnose then.
  RunTrace run(const std::vector<SettingChange>& settings) {
    std::string trace = (std::filesystem::temp_directory_path() / "brim_doctor_XXXXXX").string();
    const int made = ::mkstemp(trace.data());  // unpredictable name
    if (made < 0) fail(ErrorCode::cannot_write, "{}: cannot create: {}", trace, std::strerror(errno));
    ::close(made);
    std::vector<std::string> args = {"brim"};
    std::vector<std::string> variables;
    for (char** v = environ; *v != nullptr; ++v) variables.emplace_back(*v);
    for (const SettingChange& s : settings)
      std::erase_if(variables, [&](const std::string& v) { return v.starts_with(s.variable() + "="); });
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const std::string& a = arguments_[i];
      const auto names = [&](const SettingChange& s) {
        std::string flag = a.substr(0, a.find('='));
        // brim train accepts both spellings.
        if (flag.starts_with("--")) std::replace(flag.begin() + 2, flag.end(), '_', '-');
        return flag == "--" + dashed(s.name) || (s.name == "output" && flag == "-o");
      };
      if (std::any_of(settings.begin(), settings.end(), names)) {
        if (a.find('=') == std::string::npos) ++i;  // remove its value too
        continue;
      }
      args.push_back(a);
    }
    for (const SettingChange& s : settings)
      if (!s.value.empty()) args.insert(args.end(), {"--" + dashed(s.name), s.value});
    args.insert(args.end(), {"--trace", trace});
    const int status = spawn(args, variables);
    if (status != 0) {
      std::error_code ignored;
      std::filesystem::remove(trace, ignored);
      if (WIFEXITED(status)) throw Failed{WEXITSTATUS(status)};
      fail(ErrorCode::internal, "the run was terminated by signal {}", WTERMSIG(status));
    }
    RunTrace result = jobs::read_trace(trace);
    std::error_code ignored;
    std::filesystem::remove(trace, ignored);
    return result;
  }

  struct Failed {
    int code;
  };

 private:
  static int spawn(std::vector<std::string>& args, std::vector<std::string>& variables) {
    std::vector<char*> argv, envp;
    for (auto& a : args) argv.push_back(a.data());
    for (auto& v : variables) envp.push_back(v.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    pid_t child = 0;
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const int error = ::posix_spawn(&child, "/proc/self/exe", nullptr, &attributes, argv.data(), envp.data());
    ::posix_spawnattr_destroy(&attributes);
    if (error != 0) fail(ErrorCode::internal, "cannot start the run: {}", std::strerror(error));
    int status = 0;
    bool told = false;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (stop_requested() && !told) told = ::kill(child, SIGINT) == 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return status;
  }

  std::vector<std::string> arguments_;
};

// "brim score …", "./brim train …" or "score …"; only commands that write a trace of stages can be diagnosed.
std::vector<std::string> checked_command(std::vector<std::string> command) {
  if (!command.empty() && std::filesystem::path(command[0]).filename() == "brim") command.erase(command.begin());
  const bool forecasts = command.size() > 1 && command[0] == "forecast" &&
                         (command[1] == "train" || command[1] == "roll" || command[1] == "backtest");
  if (command.empty() || (command[0] != "score" && command[0] != "train" && !forecasts))
    fail(ErrorCode::usage,
         "brim doctor -- {}: unsupported command; use `brim score …`, `brim train …`, `brim forecast train …` or `brim "
         "forecast roll …`",
         fmt::join(command, " "));
  for (const auto& a : command)
    if (a == "--trace" || a.starts_with("--trace="))
      fail(ErrorCode::usage, "--trace: written by brim doctor itself; remove it from the command");
  return command;
}

jobs::Diagnosis look_at(const RunTrace& trace) {
  std::optional<jobs::BudgetProbe> probe;
  if (wants_probe(trace)) {
    try {
      probe = jobs::measure_budgets(trace.record);
    } catch (const Error& e) {
      log_info("cannot measure batch sizes ({}); using the plan's prediction", e.what());
    }
  }
  jobs::Diagnosis d = diagnose(trace, probe);
  for (std::string& fact : d.facts) fact = rendered(fact, trace.record.verb);
  for (jobs::Finding& f : d.findings) {  // advice refers to the traced command
    f.evidence = rendered(f.evidence, trace.record.verb);
    f.change = rendered(f.change, trace.record.verb);
  }
  return d;
}

struct Verified {
  bool done = false;
  std::string why;  // why it was not done
  jobs::Cause cause = jobs::Cause::startup;
  double before = 0, predicted = 0, obtained = 0;
  double error() const { return obtained > 0 ? predicted / obtained - 1 : 0; }
};

// Runs again with the settings of the first finding.
Verified verify(Child& child, const RunTrace& trace, const jobs::Diagnosis& d) {
  Verified v;
  if (d.nothing_to_gain()) {
    v.why = "no improvement found";
    return v;
  }
  const auto settable =
      std::find_if(d.findings.begin(), d.findings.end(), [](const jobs::Finding& f) { return !f.settings.empty(); });
  if (settable == d.findings.end()) {
    v.why =
        fmt::format("{}: not a setting of Brim; change it and run brim doctor again", cause_name(d.findings[0].cause));
    return v;
  }
  if (std::any_of(trace.record.inputs.begin(), trace.record.inputs.end(),
                  [](const std::string& p) { return !io::is_rereadable(p); })) {
    v.why = "the input cannot be read twice; use a file";
    return v;
  }
  std::vector<SettingChange> settings = settable->settings;
  const bool train = trace.record.trains();
  if (train && trace.record.training->resumed) {
    v.why = "the run resumed from a checkpoint; only runs from the start can be repeated";
    return v;
  }
  // A second training run writes to a temporary directory on the same disk, which is removed afterwards.
  const std::string beside = std::filesystem::path(trace.record.output + "/").parent_path().string() + ".doctor";
  if (train) {
    if (std::filesystem::exists(beside))
      fail(ErrorCode::cannot_write, "{}: already exists, and the second run of --verify writes there; remove it",
           beside);
    settings.push_back({trace.record.trains_lanes() ? "output" : "output_dir", beside});
  }
  const auto remove = [&] {
    std::error_code ignored;
    if (train) std::filesystem::remove_all(beside, ignored);
  };
  RunTrace again;
  try {
    again = child.run(settings);
  } catch (...) {
    remove();
    throw;
  }
  remove();
  v.done = true;
  v.cause = settable->cause;
  v.before = d.seconds;
  v.predicted = settable->predicted_seconds;
  v.obtained = diagnose(again).seconds;
  return v;
}

nlohmann::ordered_json machine_json(const std::vector<jobs::MachineCheck>& checks) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const jobs::MachineCheck& c : checks)
    all.push_back({{"what", c.what}, {"state", check_state_name(c.state)}, {"found", c.found}, {"advice", c.advice}});
  return all;
}

jobs::MetricValues fetch_metrics(const DoctorFlags& f) {
  net::HttpRequest request;
  request.url = f.url + (f.url.ends_with('/') ? "metrics" : "/metrics");
  if (!f.api_key.empty()) request.headers.push_back("Authorization: Bearer " + f.api_key);
  request.first_s = 10;
  const net::HttpAnswer answer = net::http_fetch(request);
  if (answer.end != net::HttpEnd::complete) fail(ErrorCode::bad_data, "{}: {}", request.url, answer.why);
  if (answer.status == 401 || answer.status == 403)
    fail(ErrorCode::bad_data, "{}: status {}; set --api-key to a key with scope metrics", request.url, answer.status);
  if (answer.status != 200) fail(ErrorCode::bad_data, "{}: status {}", request.url, answer.status);
  try {
    return jobs::read_metrics(answer.text);
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", request.url, error.what());
  }
}

// Diagnoses a server from two readings of its metrics.
int run_server_doctor(const DoctorFlags& f) {
  if (!f.run.empty() || !f.command.empty() || !f.apply.empty() || f.verify)
    fail(ErrorCode::usage, "--url: cannot be combined with --run, --apply, --verify or a command");
  if (!f.url.starts_with("http://") && !f.url.starts_with("https://"))
    fail(ErrorCode::usage, "--url {}: must be http://HOST:PORT or https://HOST:PORT", f.url);
  if (!(f.seconds > 0 && f.seconds <= 3600))
    fail(ErrorCode::usage, "--seconds {}: must be above 0 and at most 3600", f.seconds);
  const jobs::MetricValues before = fetch_metrics(f);
  const int64_t begin = now_ns();
  std::this_thread::sleep_for(std::chrono::duration<double>(f.seconds));
  const jobs::MetricValues after = fetch_metrics(f);
  const jobs::ServerDiagnosis d = jobs::diagnose_server(before, after, seconds_since(begin));
  if (f.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"schema_version", 1}, {"server", to_json(d)}}.dump(2));
  else
    fmt::print("{}", to_text(d));
  return 0;
}

int run_doctor(const DoctorFlags& f) {
  if (!f.url.empty()) return run_server_doctor(f);
  if (!f.run.empty() && !f.command.empty())
    fail(ErrorCode::usage, "brim doctor: --run and a command after -- cannot be combined");
  if (f.verify && f.command.empty()) fail(ErrorCode::usage, "--verify: requires a command after --");
  if (!f.apply.empty() && f.run.empty() && f.command.empty())
    fail(ErrorCode::usage, "--apply: requires --run FILE or a command after --");
  if (!f.apply.empty()) io::require_writable(f.apply);
  nlohmann::ordered_json all = {{"schema_version", 1}};
  std::string text;
  std::vector<jobs::MachineCheck> checks;
  std::optional<RunTrace> trace;
  Child child(f.command.empty() ? std::vector<std::string>() : checked_command(f.command));
  if (f.run.empty()) {
    checks = jobs::check_machine(".");
    all["machine"] = machine_json(checks);
    text += "machine\n" + to_text(checks);
  }
  if (!f.command.empty()) stop_on_signals();
  try {
    if (!f.command.empty())
      trace = child.run({});
    else if (!f.run.empty())
      trace = jobs::read_trace(f.run);
    if (trace) {
      const jobs::Diagnosis d = look_at(*trace);
      all["run"] = nlohmann::ordered_json::parse(to_json(d));
      text += (text.empty() ? "" : "\nrun\n") + to_text(d);
      if (!f.apply.empty()) {
        io::write_file_atomically(f.apply, rendered(to_env_file(d)));
        const bool any = std::any_of(d.findings.begin(), d.findings.end(),
                                     [](const jobs::Finding& found) { return !found.settings.empty(); });
        text += any ? fmt::format("\nsettings written to {}; use them with --env-file {}\n", f.apply, f.apply)
                    : fmt::format("\nno setting would help; {} contains none\n", f.apply);
      }
      if (f.verify) {
        const Verified v = verify(child, *trace, d);
        if (v.done) {
          all["verify"] = {{"cause", cause_name(v.cause)},
                           {"before_seconds", v.before},
                           {"predicted_seconds", v.predicted},
                           {"obtained_seconds", v.obtained},
                           {"prediction_error", v.error()}};
          text +=
              fmt::format("\nverified: {} before, {} predicted without {}, {} measured (prediction error {:+.0f} %)\n",
                          format_duration(v.before), format_duration(v.predicted), cause_name(v.cause),
                          format_duration(v.obtained), 100 * v.error());
        } else {
          all["verify"] = {{"not_done", v.why}};
          text += fmt::format("\nnot verified: {}\n", v.why);
        }
      }
    }
  } catch (const Child::Failed& failed) {
    return failed.code;  // the run has reported its error
  }
  if (f.json) text = all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  // A report must not be mixed with rows on standard output.
  if (trace && f.run.empty() && trace->record.output == "-")
    put_stderr(text);
  else
    fmt::print("{}", text);
  return 0;
}

}  // namespace

std::function<int()> setup_doctor(CLI::App& app) {
  auto f = std::make_shared<DoctorFlags>();
  app.add_option("--run", f->run,
                 "trace of an earlier run, written by --trace of brim score, train, forecast train or forecast roll");
  app.add_option("--apply", f->apply, "write the recommended settings to this file, for --env-file");
  app.add_flag("--verify", f->verify,
               "run the command again with the recommended settings and compare with the prediction");
  app.add_option("--url", f->url, "server to diagnose while it is slow, such as http://127.0.0.1:8080");
  app.add_option("--seconds", f->seconds, "time between two readings of a server's metrics")->capture_default_str();
  app.add_option("--api-key", f->api_key, "key for --url; set BRIM_API_KEY to keep it out of process lists")
      ->envname("BRIM_API_KEY");
  app.add_flag("--json", f->json, "print JSON");
  app.add_option("command", f->command,
                 "command to run and diagnose, after --: `brim score`, `brim train`, `brim forecast train` or `roll`");
  app.footer(
      "Without a run, checks the machine: GPU, driver, clocks, memory, processes, cores, load, disk.\n"
      "  brim doctor -- brim score tweets.csv -o labels.csv\n  brim doctor -- brim train --model default --train "
      "rows.csv --output-dir out\n"
      "  brim doctor --run run.json --apply fast.env\n  brim doctor --url http://127.0.0.1:8080");
  return [f] { return run_doctor(*f); };
}

}  // namespace brim::cli
