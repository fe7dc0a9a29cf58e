// SPDX-License-Identifier: Apache-2.0
#include "cli/render.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/settings.h"

namespace brim::cli {
namespace {

Renderer renderer;
std::string verb_at_hand;

}  // namespace

std::string command_path(const CLI::App& command) {
  if (command.get_parent() == nullptr) return "";
  const std::string before = command_path(*command.get_parent());
  return before.empty() ? command.get_name() : before + " " + command.get_name();
}

Renderer::Renderer(const CLI::App& program) { add(program, "", {}); }

void Renderer::add(const CLI::App& verb, const std::string& name, Flags flags) {
  for (const CLI::Option* option : verb.get_options()) {
    const auto& names = option->get_lnames();
    if (names.empty()) {
      flags[underscored(option->get_name(true))] = {option->get_name(true), false};
      continue;
    }
    // Show the first of several names: --max-length, not --max_length.
    for (const std::string& known : names)
      flags[underscored(known)] = {"--" + (underscored(known) == underscored(names[0]) ? names[0] : known),
                                   option->get_items_expected_min() == 0};
  }
  // The library's `model` is `models` in some commands.
  if (const auto models = flags.find("models"); models != flags.end()) flags.emplace("model", models->second);
  verbs_[name] = flags;
  for (const CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; }))
    add(*inner, name.empty() ? inner->get_name() : name + " " + inner->get_name(), flags);
}

std::string Renderer::words(std::string_view settings, const Flags& flags) {
  std::string out;
  bool after_switch = false;
  for (size_t at = 0; at <= settings.size();) {
    const size_t end = std::min(settings.find(' ', at), settings.size());
    const std::string_view word = settings.substr(at, end - at);
    at = end + 1;
    const size_t equals = word.find('=');
    const auto flag = flags.find(word.substr(0, equals));
    if (flag == flags.end()) {
      if (out.empty() || after_switch) return "";
      out += ' ';
      out += word;  // a value that contains a space
      continue;
    }
    const std::string_view value = equals == std::string_view::npos ? "" : word.substr(equals + 1);
    out += (out.empty() ? "" : " ") + flag->second.name;
    after_switch = flag->second.is_switch && value == "true";
    if (equals != std::string_view::npos && !after_switch) out += value.empty() ? " ''" : " " + std::string(value);
  }
  return out;
}

std::string Renderer::span(std::string_view inside, const std::string& verb) const {
  constexpr std::string_view kProgram = "brim ";
  const bool other = inside.starts_with(kProgram);
  if (other) inside.remove_prefix(kProgram.size());
  size_t blank = other ? inside.find(' ') : 0;
  if (const size_t second = inside.find(' ', blank + 1); other && blank != std::string_view::npos)
    if (verbs_.find(inside.substr(0, second)) != verbs_.end()) blank = second;  // a subcommand: forecast train
  const auto flags = verbs_.find(other ? inside.substr(0, blank) : std::string_view(verb));
  if (flags == verbs_.end() || blank == std::string_view::npos) return "";
  const std::string out = words(other ? inside.substr(blank + 1) : inside, flags->second);
  return out.empty() || !other ? out : fmt::format("`brim {} {}`", flags->first, out);
}

std::string Renderer::text(std::string_view text, const std::string& verb) const {
  std::string out;
  while (true) {
    const size_t open = text.find('`'), close = open == text.npos ? open : text.find('`', open + 1);
    if (close == text.npos) return out.append(text);
    const std::string changed = span(text.substr(open + 1, close - open - 1), verb);
    out += changed.empty() ? text.substr(0, close) : std::string(text.substr(0, open)) + changed;
    text.remove_prefix(changed.empty() ? close : close + 1);  // an unmatched closing backquote may open the next span
  }
}

void render_for(const CLI::App& program, const CLI::App& verb) {
  renderer = Renderer(program);
  verb_at_hand = command_path(verb);
}

std::string rendered(std::string_view text) { return renderer.text(text, verb_at_hand); }

std::string rendered(std::string_view text, const std::string& verb) { return renderer.text(text, verb); }

}  // namespace brim::cli
