// SPDX-License-Identifier: Apache-2.0
#include "cli/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/settings.h"
#include "cli/verbs.h"

namespace brim::cli {
namespace {

struct Flag {
  std::vector<std::string> names;  // "--quiet", "-q"
  std::string help;
  std::vector<std::string> choices;
  bool takes_value = false;
};

struct VerbWords {
  std::string name;  // "models export"; empty for the program itself
  std::string help;
  std::vector<Flag> flags;
  std::vector<const CLI::App*> inner;
};

// Allowed values of a setting in the command's table; empty if any.
std::vector<std::string> choices_of(const std::string& verb, const std::string& flag) {
  const auto infos = settings_of(verb);
  const auto info = std::find_if(infos.begin(), infos.end(), [&](const auto& i) { return dashed(i.name) == flag; });
  return info == infos.end() ? std::vector<std::string>{} : info->choices;
}

std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Adds the command and its subcommands, each with its flags, including inherited ones.
void add_verb(const CLI::App& app, const std::string& name, std::vector<Flag> flags, std::vector<VerbWords>& all) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty()) continue;
    Flag flag;
    for (const auto& long_name : option->get_lnames()) flag.names.push_back("--" + long_name);
    for (const auto& letter : option->get_snames()) flag.names.push_back("-" + letter);
    if (flag.names[0].starts_with("--help") && app.get_parent() != nullptr && app.get_parent()->get_parent() != nullptr)
      continue;
    flag.help = option->get_description();
    flag.takes_value = option->get_items_expected_max() > 0;
    flag.choices = choices_of(name, option->get_lnames()[0]);
    flags.push_back(std::move(flag));
  }
  all.push_back({name, app.get_description(), flags, verbs_of(app)});
  if (name.empty())  // the only program-level flag that commands accept
    std::erase_if(flags, [](const Flag& f) { return f.names[0] != "--env-file"; });
  for (const CLI::App* inner : verbs_of(app))
    add_verb(*inner, name.empty() ? inner->get_name() : name + " " + inner->get_name(), flags, all);
}

// The command names, separated by spaces.
std::string first_words(const std::vector<const CLI::App*>& verbs) {
  std::vector<std::string> names;
  for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
  return fmt::format("{}", fmt::join(names, " "));
}

std::string bash(const std::vector<VerbWords>& verbs) {
  std::string cases, values, inner_values;
  for (auto verb = verbs.rbegin(); verb != verbs.rend(); ++verb) {  // "models export" before "models"
    std::string words = first_words(verb->inner);
    for (const Flag& flag : verb->flags) {
      for (const auto& name : flag.names)
        if (name.starts_with("--")) words += (words.empty() ? "" : " ") + name;
      if (!flag.choices.empty())
        (verb->name.find(' ') == std::string::npos ? values : inner_values) +=
            fmt::format("    \"{} {}\") words=\"{}\" ;;\n", verb->name, flag.names[0], fmt::join(flag.choices, " "));
    }
    cases += fmt::format("    {}*) words=\"{}\" ;;\n", verb->name.empty() ? "" : "\"" + verb->name + " \"", words);
  }
  return fmt::format(
      "_brim() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=\n"
      "  case \"${{COMP_WORDS[*]:1}} \" in\n{}  esac\n"
      "  case \"${{COMP_WORDS[1]}} $before\" in\n{}  esac\n"
      "  case \"${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}} $before\" in\n{}  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "  [ ${{#COMPREPLY[@]}} -eq 0 ] && COMPREPLY=($(compgen -f -- \"$word\"))\n"
      "}}\ncomplete -o filenames -F _brim brim\n",
      cases, values, inner_values);
}

// Escapes text within single quotes; in zsh brackets and colons are special too.
std::string quoted(std::string text, const char* special) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') continue;
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (std::string_view(special).find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string zsh(const std::vector<VerbWords>& verbs) {
  const auto described = [](const std::vector<const CLI::App*>& of) {
    std::string all;
    for (const CLI::App* verb : of)
      all += fmt::format(" '{}:{}'", verb->get_name(), quoted(verb->get_description(), ":"));
    return all;
  };
  std::string cases;
  for (auto verb = verbs.rbegin(); verb != verbs.rend(); ++verb) {
    std::string flags;
    for (const Flag& flag : verb->flags)
      for (const auto& name : flag.names)
        flags += fmt::format(" \\\n        '{}[{}]{}'", name, quoted(flag.help, "[]:\\"),
                             !flag.takes_value      ? ""
                             : flag.choices.empty() ? ":value:_files"
                                                    : fmt::format(":value:({})", fmt::join(flag.choices, " ")));
    cases += verb->name.empty() ? "    *)\n" : fmt::format("    '{} '*)\n", verb->name);
    if (!verb->inner.empty())
      cases += fmt::format("      (( CURRENT == {} )) && {{ subcommands=({}); _describe command subcommands }}\n",
                           verb->name.empty() ? 2 : 3, described(verb->inner));
    cases += fmt::format("      _arguments '*:file:_files'{} ;;\n", flags);
  }
  return fmt::format(
      "#compdef brim\n_brim() {{\n  local -a subcommands\n  case \"$words[2,-1] \" in\n{}  esac\n}}\ncompdef _brim "
      "brim\n",
      cases);
}

std::string fish(const std::vector<VerbWords>& verbs) {
  std::string out = "complete -c brim -e\n";
  for (const VerbWords& verb : verbs) {
    const size_t blank = verb.name.find(' ');
    std::string when =
        verb.name.empty() ? "__fish_use_subcommand" : "__fish_seen_subcommand_from " + verb.name.substr(0, blank);
    if (blank != std::string::npos) when += "; and __fish_seen_subcommand_from " + verb.name.substr(blank + 1);
    for (const CLI::App* inner : verb.inner)
      out += fmt::format("complete -c brim -n '{}' -f -a {} -d '{}'\n", when, inner->get_name(),
                         quoted(inner->get_description(), "\\"));
    for (const Flag& flag : verb.flags) {
      out += fmt::format("complete -c brim -n '{}'", when);
      for (const auto& name : flag.names)
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (flag.takes_value)
        out += flag.choices.empty() ? " -r" : fmt::format(" -x -a '{}'", fmt::join(flag.choices, " "));
      out += fmt::format(" -d '{}'\n", quoted(flag.help, "\\"));
    }
  }
  return out;
}

}  // namespace

std::string completion_script(const CLI::App& program, const std::string& shell) {
  std::vector<VerbWords> verbs;
  add_verb(program, "", {}, verbs);
  if (shell == "bash") return bash(verbs);
  if (shell == "zsh") return zsh(verbs);
  if (shell == "fish") return fish(verbs);
  fail(ErrorCode::usage, "brim completion {}: use bash, zsh or fish", shell);
}

}  // namespace brim::cli
