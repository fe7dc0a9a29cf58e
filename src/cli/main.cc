// SPDX-License-Identifier: Apache-2.0
// Program entry point: commands, help, exit codes. The functionality is in the libraries.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <optional>
#include <system_error>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/units.h"
#include "brim/brim.h"
#include "cli/completion.h"
#include "cli/config_file.h"
#include "cli/env_file.h"
#include "cli/help.h"
#include "cli/man.h"
#include "cli/pull.h"
#include "cli/render.h"
#include "cli/tei_flags.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "device/built_with_cuda.h"
#include "io/descriptor.h"
#include "plan/card_measure.h"

namespace brim::cli {
namespace {

std::atomic<bool> stop{false}, saves{false};
std::atomic<int64_t> stopped_ns{0};  // time of the first signal

// A command that saves its work gets a second to do so, even if one event sends several signals, like a closing
// terminal. After that, or if there is nothing to save, a signal ends the process at once.
void on_signal(int) {
  constexpr int64_t kSecond = 1'000'000'000;
  if (!saves) {
    constexpr std::string_view kSaid = "brim: interrupted\n";
    (void)!::write(STDERR_FILENO, kSaid.data(), kSaid.size());
    ::_exit(exit_code(ErrorCode::interrupted));
  }
  // The compare-exchange decides which signal was first: two may be handled concurrently, on two threads or nested.
  const int64_t now = now_ns();
  int64_t first = 0;
  if (!stopped_ns.compare_exchange_strong(first, now) && now - first > kSecond)
    ::_exit(exit_code(ErrorCode::interrupted));
  stop = true;
}

void take_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);  // preserves nohup
}

// Only errors and warnings begin with "brim:", so that they can be found in a log.
void print_error(std::string_view message) { put_stderr_line("\x1b[31m", "brim:", message); }

void print_log(LogLevel level, std::string_view message) {
  if (level == LogLevel::debug && !env_flag("BRIM_DEBUG")) return;
  if (level == LogLevel::warning)
    put_stderr_line("\x1b[33m", "brim: warning:", rendered(message));
  else
    print_stderr("{}\n", rendered(message));
}

// If stdin, stdout or stderr is closed, the next opened file would get its number and receive its data. The
// replacements fail on reads and writes like the closed ones; output to stderr is dropped.
void fill_closed_streams() {
  for (const auto& [fd, mode] :
       {std::pair(STDIN_FILENO, O_WRONLY), std::pair(STDOUT_FILENO, O_RDONLY), std::pair(STDERR_FILENO, O_WRONLY)})
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", mode);  // takes the lowest free number, which is fd
}

bool reader_is_gone(int fd) {
  pollfd state{fd, POLLOUT, 0};
  return ::poll(&state, 1, 0) > 0 && (state.revents & POLLERR) != 0;
}

std::string unknown_verb(const std::string& typed) {
  std::vector<std::string> names = {"help", "completion"};
  for (const Verb& v : all_verbs()) names.emplace_back(v.name);
  const std::string near = nearest_name(typed, names);
  return fmt::format("unknown command '{}'{}; `brim help` lists all commands", typed,
                     near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
}

// Null if unknown; CLI11 would throw.
const CLI::App* find_verb(const CLI::App& app, const std::string& name) {
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (sub->check_name(name)) return sub;  // also aliases
  return nullptr;
}

// `brim models`, `brim profile` and `brim forecast` have subcommands.
std::vector<std::string> inner_verbs(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(inner->get_name());
  return names;
}

void require_inner_verb(const CLI::App& verb, const char* typed) {
  const auto names = inner_verbs(verb);
  if (names.empty() || verb.get_require_subcommand_min() == 0 ||
      (typed != nullptr && (typed[0] == '-' || find_verb(verb, typed) != nullptr)))
    return;
  if (typed == nullptr)
    fail(ErrorCode::usage, "brim {}: missing subcommand: {}", verb.get_name(), fmt::join(names, ", "));
  const std::string near = nearest_name(typed, names);
  fail(ErrorCode::usage, "brim {}: unknown subcommand '{}'{}: {}", verb.get_name(), typed,
       near.empty() ? "" : fmt::format(" (did you mean {}?)", near), fmt::join(names, ", "));
}

// The given command or subcommand; `app` itself if none.
const CLI::App& typed_verb(const CLI::App& app) {
  const CLI::App* verb = &app;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().front();
  return *verb;
}

// "did you mean --device cuda:0?" for --gpu 0, else the flag with the nearest name; empty if none is close.
std::string flag_suggestion(const CLI::App& verb, const std::string& typed, const std::string& value) {
  if (const SettingHint hint = hint_for(typed, value);
      !hint.key.empty() && verb.get_option_no_throw("--" + dashed(hint.key)) != nullptr)
    return dashed(hint.key) + (hint.value.empty() ? "" : " " + hint.value);
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options())
    names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  return dashed(nearest_setting(verb.get_name(), typed).value_or(nearest_name(typed, names)));
}

// The value of a flag that may be unknown: --flag=VALUE or --flag VALUE. Empty if there is none.
std::string value_of(const std::string& flag, const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with(flag + "=")) return words[i].substr(flag.size() + 1);
    if (words[i] == flag && i + 1 < words.size() && !words[i + 1].starts_with("--")) return words[i + 1];
  }
  return "";
}

// `extra`: the unexpected arguments; `words`: all arguments, both in the given order.
std::string extra_argument(const CLI::App& verb, const std::vector<std::string>& extra,
                           const std::vector<std::string>& words) {
  const std::string& name = verb.get_name();
  const auto flag = std::find_if(extra.begin(), extra.end(), [](const auto& word) { return word.starts_with("-"); });
  std::string typed = flag == extra.end() ? extra.at(0) : flag->substr(0, flag->find('='));
  if (!typed.starts_with("-")) {
    if (name == "train") return fmt::format("unexpected argument '{0}' (did you mean --train {0}?)", typed);
    if (name == "plan" || name == "tune")
      return fmt::format("unexpected argument '{0}' (did you mean --model {0}?)", typed);
    return fmt::format("unexpected argument '{}'", typed);
  }
  if (!typed.starts_with("--")) return fmt::format("unknown flag {}", typed);
  const std::string value = value_of(typed, words);
  typed.erase(0, 2);
  const std::string near = flag_suggestion(verb, typed, value);
  return fmt::format("unknown flag --{}{}", typed,
                     near.empty() ? why_not_needed(typed) : fmt::format(" (did you mean --{}?)", near));
}

// Rewords CLI11's parse errors with the flag, the value and a suggestion.
std::string parse_problem(const CLI::App& app, const std::vector<std::string>& words, const CLI::ParseError& error) {
  const CLI::App& verb = typed_verb(app);
  const std::string text = error.what();
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::ConversionError: {  // "Could not convert: --threads = x"
      const size_t flag = text.find(" --"), equals = text.find(" = ");
      if (flag == std::string::npos || equals == std::string::npos) return text;
      return fmt::format("{} {}: invalid value (expected a number in range, or true or false for a switch)",
                         text.substr(flag + 1, equals - flag - 1), text.substr(equals + 3));
    }
    case CLI::ExitCodes::ArgumentMismatch: {  // "--model: At Most 1 required but received 2", "--model: 1 required …"
      const size_t colon = text.find(": "), received = text.find(" received ");
      if (colon == std::string::npos) return text;
      const std::string flag = text.substr(0, colon);
      if (text.find(": At Most 1 ") == std::string::npos) return flag + ": missing value";
      return fmt::format("{} is given {} times; brim {} accepts one", flag, text.substr(received + 10),
                         verb.get_name());
    }
    case CLI::ExitCodes::ExtrasError:
      return extra_argument(verb, app.remaining(true), words);
    default:
      return text;
  }
}

void reject_empty_numbers(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options())
    if (lacks_number(*option)) fail(ErrorCode::usage, "{}: missing value", option->get_name());
}

using Verbs = std::vector<std::pair<CLI::App*, std::function<int()>>>;

Verbs add_verbs(CLI::App& app) {
  Verbs verbs;
  for (const Verb& verb : all_verbs()) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.summary);
    auto action = verb.setup(*sub);
    add_pull_flag(*sub);
    add_environment(*sub);
    sub->fallthrough();  // --env-file may follow the command
    verbs.emplace_back(sub, std::move(action));
  }
  return verbs;
}

void add_variables(const CLI::App& verb, std::vector<std::string>& names) {
  for (const CLI::Option* option : verb.get_options())
    if (!option->get_envname().empty()) names.push_back(option->get_envname());
  for (const CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; })) add_variables(*inner, names);
}

std::vector<std::string> flag_variables(const Verbs& verbs) {
  std::vector<std::string> names;
  for (const auto& [sub, action] : verbs) add_variables(*sub, names);
  return names;
}

// Explains keys without effect, or lists the file's keys that this command does not use.
void note_plain_keys(const CLI::App& verb) {
  const CLI::Option* quiet = verb.get_option_no_throw("--quiet");
  if (quiet != nullptr && quiet->count() > 0) return;
  const std::string& name = verb.get_name();
  if (reads_plain_keys(name)) {
    for (const std::string& note : env_notes()) log_info("{}", note);
    return;
  }
  const bool uses_model_name = (name == "score" || name == "eval") && verb.get_option("--model")->count() == 0;
  if (const std::string note = unused_keys_note(name, uses_model_name); !note.empty()) log_info("{}", note);
}

// As wide as the terminal, within limits.
void print_help(const CLI::App& command, bool all) {
  const int width = is_terminal(STDOUT_FILENO) ? std::clamp(terminal_width(STDOUT_FILENO), 60, 120) : 100;
  std::cout << help_text(command, all, width);
}

struct HelpFlags {
  std::vector<std::string> words;
  bool all = false, man = false, markdown = false;
};

CLI::App* add_help(CLI::App& app, HelpFlags& flags) {
  CLI::App* help = app.add_subcommand("help", "show the flags of a command");
  help->add_option("command", flags.words, "command, and its subcommand as in `brim help models export`");
  help->add_flag("--all", flags.all, "show all flags and environment variables");
  help->add_flag("--man", flags.man, "print a manual page");
  help->add_flag("--markdown", flags.markdown, "print the flag reference of all commands");
  return help;
}

void run_help(const CLI::App& app, const HelpFlags& flags) {
  const CLI::App* about = &app;
  for (const std::string& word : flags.words) {
    if (word == "help" && about == &app) break;
    if (about != &app && inner_verbs(*about).empty())
      fail(ErrorCode::usage, "brim {} has no subcommands", command_path(*about));
    if (about != &app) require_inner_verb(*about, word.c_str());
    about = find_verb(*about, word);
    if (about == nullptr) fail(ErrorCode::usage, "{}", unknown_verb(word));
  }
  if (flags.markdown)
    std::cout << flag_reference(app);
  else if (flags.man)
    std::cout << man_page(app, about == &app ? nullptr : about);
  else
    print_help(*about, flags.all);
}

// Parses the command line, or prints the help or version it asks for and returns the exit code.
std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-') {
    const CLI::App* typed = find_verb(app, argv[1]);
    if (typed == nullptr) fail(ErrorCode::usage, "{}", unknown_verb(argv[1]));
    require_inner_verb(*typed, argc > 2 ? argv[2] : nullptr);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print_help(typed_verb(app), false);
    return 0;
  } catch (const CLI::CallForAllHelp&) {
    print_help(typed_verb(app), true);
    return 0;
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    const CLI::App& verb = typed_verb(app);
    const std::string path = command_path(verb);
    fail(ErrorCode::usage, "{}; see `brim{}{} --help`", parse_problem(app, {argv + 1, argv + argc}, e),
         path.empty() ? "" : " ", path);
  } catch (const Error&) {  // a value rejected by the settings table
    render_for(app, typed_verb(app));
    throw;
  }
  render_for(app, typed_verb(app));
  reject_empty_numbers(typed_verb(app));
  return std::nullopt;
}

// "brim 0.1.0 (CUDA 12.4.131)"
std::string version_text() {
  const std::string cuda = device::cuda_compiler_version();
  return fmt::format("brim {}{}", version(), cuda.empty() ? "" : fmt::format(" (CUDA {})", cuda));
}

int run(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "measure-card") return run_measure_card({argv + 2, argv + argc});
  plan::set_measuring_program("/proc/self/exe");
  std::string env_file = env_file_of(argc, argv);
  if (!env_file.empty()) {  // before any flag takes its default from the environment
    CLI::App unused;
    for (const std::string& note : load_env_file(env_file, flag_variables(add_verbs(unused)))) log_warning("{}", note);
  }
  CLI::App app("Fine-tunes, runs and serves text classifiers within a planned memory limit", "brim");
  app.set_help_all_flag("--help-all", "print all flags and environment variables");
  app.get_help_ptr()->description("print the common flags");
  app.set_version_flag("--version", version_text())->description("print the version");
  app.require_subcommand(0, 1);
  app.add_option("--env-file", env_file,
                 "file of BRIM_ and other known variables (.env); the environment takes precedence")
      ->type_name("TEXT");
  const Verbs verbs = add_verbs(app);
  for (const std::string& note : misspelt_environment(flag_variables(verbs))) log_warning("{}", note);
  HelpFlags help_flags;
  CLI::App* help = add_help(app, help_flags);
  CLI::App* completion = app.add_subcommand("completion", "print a completion script: source <(brim completion bash)");
  std::string shell = "bash";
  completion->add_option("shell", shell, "bash, zsh or fish")->capture_default_str();
  app.footer(  // after the commands, which would inherit it
      "Help for a command: brim COMMAND --help\n"
      "Exit codes: 0 ok, 2 usage, 3 bad data, 4 bad model, 5 does not fit, 6 device lost, 7 cannot write,\n"
      "8 training diverged, 130 interrupted");
  prepare_help(app);

  if (const std::optional<int> code = parse(app, argc, argv)) return *code;
  if (help->parsed()) {
    run_help(app, help_flags);
    return 0;
  }
  if (completion->parsed()) {
    std::cout << completion_script(app, shell);
    return 0;
  }
  for (const auto& [sub, action] : verbs)
    if (sub->parsed()) {
      note_plain_keys(*sub);
      apply_pull_flag(typed_verb(*sub));
      return action();
    }
  print_help(app, false);
  return 0;
}

}  // namespace

void add_environment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_lnames()[0].starts_with("help")) continue;
    if (option->get_group().empty() || option->get_group() == kTeiGroup) continue;
    std::string name = "BRIM_";
    for (const char c : option->get_lnames()[0]) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    // These two are the search path of models and the cache directory.
    if (name != "BRIM_MODELS" && name != "BRIM_CACHE") option->envname(name);
  }
}

const std::atomic<bool>& stop_requested() { return stop; }

void stop_on_signals() { saves = true; }

}  // namespace brim::cli

namespace {

// Flushes buffered output, so that a full disk is detected. A reader that stops early, like `head`, is not an error.
int written_out(int code) {
  std::cout.flush();
  const bool whole = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  if (whole || code != 0) return code;
  const int error = errno;
  if (brim::cli::reader_is_gone(STDOUT_FILENO)) return 0;
  brim::cli::print_error(fmt::format("stdout: cannot write: {}", error != 0 ? std::strerror(error) : "short write"));
  return brim::exit_code(brim::ErrorCode::cannot_write);
}

int internal_error(const std::exception& e) {
  if (std::ferror(stdout) != 0) return written_out(0);
  brim::cli::print_error(fmt::format("internal error: {}", e.what()));
  return 1;
}

// std::thread reports EAGAIN if there is no memory for a stack or no process left.
bool lacks_resources(const std::system_error& e) {
  return e.code() == std::errc::resource_unavailable_try_again || e.code() == std::errc::not_enough_memory;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // closed pipes and exceeded file-size limits become write errors
  std::signal(SIGXFSZ, SIG_IGN);
  brim::cli::fill_closed_streams();
  // GPUs in the order of nvidia-smi, lazy kernel loading. Set by the program: the library changes no environment
  // variable.
  brim::set_env_default("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
  brim::set_env_default("CUDA_MODULE_LOADING", "LAZY");
  brim::set_log_sink(brim::cli::print_log);
  brim::cli::take_signals();
  try {
    const int code = written_out(brim::cli::run(argc, argv));
    brim::log_debug("leaving");
    return code;
  } catch (const brim::io::OutputClosed&) {
    return 0;
  } catch (const brim::Error& e) {
    const std::string what = brim::cli::rendered(e.what());
    if (what.starts_with("brim "))  // "brim tune: …" contains the program's name already
      brim::print_stderr("{}\n", what);
    else
      brim::cli::print_error(what);
    return brim::exit_code(e.code());
  } catch (const std::bad_alloc&) {
    brim::cli::print_error("out of host memory");
    return brim::exit_code(brim::ErrorCode::does_not_fit);
  } catch (const std::system_error& e) {
    if (!lacks_resources(e)) return internal_error(e);
    brim::cli::print_error(
        fmt::format("cannot start a thread: {}; raise the limit on address space (ulimit -v) or processes (ulimit -u), "
                    "or reduce --threads",
                    e.code().message()));
    return brim::exit_code(brim::ErrorCode::does_not_fit);
  } catch (const std::exception& e) {
    return internal_error(e);
  }
}
