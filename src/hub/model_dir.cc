// SPDX-License-Identifier: Apache-2.0
#include "hub/model_dir.h"

#include <dlfcn.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/env.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/units.h"
#include "hub/sentence_settings.h"
#include "io/quote_text.h"

namespace brim::hub {
namespace fs = std::filesystem;
namespace {

// Repositories for a short name, preferred download first.
struct Alias {
  std::string_view name;
  std::vector<std::string> repositories;
};
const std::vector<Alias>& aliases() {
  static const std::vector<Alias> all = {
      {"finbert", {"ProsusAI/finbert"}},
      {"distilbert",
       {"distilbert/distilbert-base-uncased-finetuned-sst-2-english",
        "distilbert-base-uncased-finetuned-sst-2-english"}},
      {"roberta", {"cardiffnlp/twitter-roberta-base-sentiment-latest"}},
  };
  return all;
}

// The name itself, then its aliases.
std::vector<std::string> candidates(const std::string& name) {
  std::vector<std::string> all = {name};
  for (const Alias& alias : aliases())
    if (same_word(alias.name, name)) all.insert(all.end(), alias.repositories.begin(), alias.repositories.end());
  return all;
}

bool name_part(std::string_view part) {
  auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  return !part.empty() && part[0] != '.' && std::all_of(part.begin(), part.end(), allowed);
}

// NAME or ORG/NAME: safe to append to a root.
bool is_model_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return name_part(name);
  return name_part(name.substr(0, slash)) && name_part(name.substr(slash + 1));
}

bool is_dir(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// refs/main holds the commit fetched last; its files are links under snapshots/COMMIT.
std::optional<fs::path> newest_snapshot(const fs::path& repository) {
  std::error_code ignored;
  const fs::path ref = repository / "refs" / "main";
  if (fs::is_regular_file(ref, ignored)) {
    std::string commit = read_file(ref, ErrorCode::usage);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) commit.pop_back();
    if (name_part(commit) && is_dir(repository / "snapshots" / commit)) return repository / "snapshots" / commit;
  }
  std::vector<fs::path> snapshots;  // fetched by commit, without a ref
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", ignored))
    if (entry.is_directory(ignored)) snapshots.push_back(entry.path());
  if (snapshots.size() == 1) return snapshots[0];
  return std::nullopt;
}

std::string hub_folder(std::string name) {
  if (const size_t slash = name.find('/'); slash != std::string::npos) name.replace(slash, 1, "--");
  return "models--" + name;
}

[[noreturn]] void fail_missing(const std::string& name, const ModelSearchPath& search_path) {
  std::string looked;
  for (const fs::path& root : search_path.roots) looked += "\n  " + (root / name).string();
  const std::string repository = hub_name(name);
  std::vector<std::string> known = {"vader"};
  for (const Alias& alias : aliases()) known.emplace_back(alias.name);
  for (const FoundModel& found : list_models(search_path)) known.push_back(found.name);
  const std::string near = repository == name ? nearest_name(name, known) : "";
  looked += "\n  " + (search_path.hub / hub_folder(repository)).string();
  fail(ErrorCode::usage,
       "model {} not found{}; searched the current directory and{}\nto download it: brim pull {}\n"
       "or copy the model into one of these directories, or give the path of its "
       "directory; `brim models list` lists the models found",
       io::quote_text(name), near.empty() ? "" : " (did you mean " + near + "?)", looked, repository);
}

}  // namespace

ModelSearchPath model_search_path(const std::vector<fs::path>& beside_program) {
  ModelSearchPath search_path{beside_program, {}};
  const std::string list = env("BRIM_MODELS").value_or("");
  for (size_t from = 0; from < list.size();) {
    const size_t colon = std::min(list.find(':', from), list.size());
    if (colon > from) search_path.roots.emplace_back(list.substr(from, colon - from));
    from = colon + 1;
  }
  if (const auto hub = env("HF_HUB_CACHE"))
    search_path.hub = *hub;
  else if (const auto home = env("HF_HOME"))
    search_path.hub = fs::path(*home) / "hub";
  else if (const auto cache = env("XDG_CACHE_HOME"))
    search_path.hub = fs::path(*cache) / "huggingface" / "hub";
  else
    search_path.hub = home_dir() / ".cache" / "huggingface" / "hub";
  return search_path;
}

std::vector<std::string> model_files(const fs::path& dir) {
  static const std::set<std::string> kinds = {".json", ".txt", ".model", ".codes", ".safetensors", ".bin"};
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored))
    if (entry.is_regular_file(ignored) && kinds.contains(entry.path().extension().string()))
      files.push_back(entry.path().string());
  for (const fs::path& file : sentence_files(dir))
    if (file.has_parent_path()) files.push_back((dir / file).string());
  std::sort(files.begin(), files.end());
  return files;
}

std::string model_facts(const fs::path& dir) {
  std::string facts;
  for (const std::string& file : model_files(dir)) {
    std::error_code ignored;
    facts += fmt::format("{} {} {}\n", fs::path(file).lexically_relative(dir).string(), fs::file_size(file, ignored),
                         fs::last_write_time(file, ignored).time_since_epoch().count());
  }
  return facts;
}

std::string hub_name(const std::string& name) {
  const auto all = candidates(name);
  return all.size() > 1 ? all[1] : name;
}

std::vector<fs::path> model_roots() {
  std::vector<fs::path> roots;
  if (const auto home = env("BRIM_HOME")) roots.push_back(fs::path(*home) / "models");
  std::error_code ec;
  const auto program = fs::read_symlink("/proc/self/exe", ec);
  if (!ec) {
    roots.push_back(program.parent_path() / "models");
    roots.push_back(program.parent_path().parent_path() / "share" / "brim" / "models");
  }
  Dl_info code{};  // location of libbrim.so, in LIB or LIB/ARCHITECTURE
  if (::dladdr(reinterpret_cast<const void*>(&model_roots), &code) != 0 && code.dli_fname != nullptr) {
    const fs::path library = fs::absolute(code.dli_fname, ec).parent_path();
    for (const fs::path& prefix : {library.parent_path(), library.parent_path().parent_path()})
      if (const fs::path root = prefix / "share" / "brim" / "models"; is_dir(root)) roots.push_back(root);
  }
  return roots;
}

std::string default_model() {
  for (const auto& root : model_roots())
    if (fs::is_regular_file(root / "default" / "config.json")) return "default";
  return "vader";
}

bool names_vader(std::string_view name) { return same_word(name, "vader"); }

fs::path resolve_model(const std::string& name, const ModelSearchPath& search_path) {
  if (name.empty()) fail(ErrorCode::usage, "`model` is empty; give a name or a directory");
  if (is_dir(name)) return name;
  std::error_code ignored;
  const std::string extension = fs::path(name).extension().string();
  if (fs::is_regular_file(name, ignored) && (extension == ".gguf" || extension == ".onnx"))
    fail(ErrorCode::usage,
         "`model={}`: {} files are not supported; give a Hugging Face model directory with safetensors",
         io::quote_text(name), extension == ".gguf" ? "GGUF" : "ONNX");
  if (fs::is_regular_file(name, ignored))
    fail(ErrorCode::usage, "`model={}`: is a file; give its directory", io::quote_text(name));
  if (!is_model_name(name)) fail(ErrorCode::usage, "`model={}`: directory not found", io::quote_text(name));
  const std::vector<std::string> names = candidates(name);
  for (const fs::path& root : search_path.roots)
    for (const std::string& candidate : names)
      if (is_dir(root / candidate)) return root / candidate;
  for (const std::string& candidate : names)
    if (const auto snapshot = newest_snapshot(search_path.hub / hub_folder(candidate))) return *snapshot;
  fail_missing(name, search_path);
}

std::vector<FoundModel> list_models(const ModelSearchPath& search_path) {
  std::vector<FoundModel> found;
  std::set<std::string> seen;
  std::error_code ignored;
  auto add = [&](const std::string& name, const fs::path& dir) {
    if (fs::exists(dir / "config.json", ignored) && seen.insert(name).second) found.push_back({name, dir});
  };
  auto sorted = [&](const fs::path& dir) {
    std::vector<fs::path> entries;
    for (const auto& entry : fs::directory_iterator(dir, ignored))
      if (entry.is_directory(ignored)) entries.push_back(entry.path());
    std::sort(entries.begin(), entries.end());
    return entries;
  };
  for (const fs::path& root : search_path.roots) {
    for (const fs::path& dir : sorted(root)) {
      const std::string name = dir.filename().string();
      add(name, dir);
      if (fs::exists(dir / "config.json", ignored)) continue;
      for (const fs::path& inner : sorted(dir)) add(name + "/" + inner.filename().string(), inner);  // ORG/NAME
    }
  }
  for (const fs::path& dir : sorted(search_path.hub)) {
    std::string name = dir.filename().string();
    if (!name.starts_with("models--")) continue;
    name.erase(0, 8);
    if (const size_t dashes = name.find("--"); dashes != std::string::npos) name.replace(dashes, 2, "/");
    if (const auto snapshot = newest_snapshot(dir)) add(name, *snapshot);
  }
  return found;
}

}  // namespace brim::hub
