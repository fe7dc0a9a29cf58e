// SPDX-License-Identifier: Apache-2.0
// Rewrites library messages for the command line. Libraries name settings in backquotes by their library names;
// those of the current command become its flags:
//   `long_text=truncate`               --long-text truncate
//   `optim=adamw_8bit recompute=full`  --optim adamw_8bit --recompute full
//   `fill=true`, `fill`                --fill
//   `brim plan measure=true`           `brim plan --measure`, for any current command
// Names without a flag in the command, and anything else in backquotes, are not changed.
#pragma once
#include <map>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace brim::cli {

std::string command_path(const CLI::App& command);  // "bench streams"; empty for the program

class Renderer {
 public:
  Renderer() = default;  // without flags
  explicit Renderer(const CLI::App& program);

  // `verb` may be a subcommand: "bench streams". Text is unchanged for unknown ones.
  std::string text(std::string_view text, const std::string& verb) const;

 private:
  struct Flag {
    std::string name;  // "--memory-limit"; positional arguments without dashes
    bool is_switch = false;
  };
  using Flags = std::map<std::string, Flag, std::less<>>;

  void add(const CLI::App& verb, const std::string& name, Flags inherited);
  std::string span(std::string_view inside, const std::string& verb) const;
  static std::string words(std::string_view settings, const Flags& flags);  // empty if the first is not a setting

  std::map<std::string, Flags, std::less<>> verbs_;
};

// Renderer of the program: used by print_error, the log, and commands that print library messages.
void render_for(const CLI::App& program, const CLI::App& verb);
std::string rendered(std::string_view text);
std::string rendered(std::string_view text, const std::string& verb);  // for the given command

}  // namespace brim::cli
