// SPDX-License-Identifier: Apache-2.0
// How the command line words what libraries say. They name settings in backquotes, as the library spells them; here
// those of the verb at hand become its flags:
//   `long_text=truncate`               --long-text truncate
//   `optim=adamw_8bit recompute=full`  --optim adamw_8bit --recompute full
//   `fill=true`, `fill`                --fill
//   `brim plan measure=true`           `brim plan --measure`, whatever the verb at hand
// A name the verb has no flag for, and anything else in backquotes, stays as it is.
#pragma once
#include <map>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace brim::cli {

class Renderer {
 public:
  Renderer() = default;  // knows no flag
  explicit Renderer(const CLI::App& program);

  // `verb` may be a verb's own verb: "bench streams". Where it is none, nothing is rendered.
  std::string text(std::string_view text, const std::string& verb) const;

 private:
  struct Flag {
    std::string name;  // "--memory-limit"; an argument without dashes is its bare name
    bool is_switch = false;
  };
  using Flags = std::map<std::string, Flag, std::less<>>;

  void add(const CLI::App& verb, const std::string& name, Flags inherited);
  std::string span(std::string_view inside, const std::string& verb) const;
  static std::string words(std::string_view settings, const Flags& flags);  // empty: the first is no setting

  std::map<std::string, Flags, std::less<>> verbs_;
};

// The program's: what print_error and the log go through, and what a verb prints of a library's words.
void render_for(const CLI::App& program, const CLI::App& verb);
std::string rendered(std::string_view text);
std::string rendered(std::string_view text, const std::string& verb);  // as that verb would

}  // namespace brim::cli
