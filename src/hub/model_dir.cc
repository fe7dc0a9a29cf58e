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
#include "hub/gliner_config.h"
#include "hub/model_download.h"
#include "hub/sentence_settings.h"
#include "io/hub_names.h"
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

bool is_dir(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Downloads that were interrupted before the config are ignored.
bool is_snapshot(const fs::path& dir) {
  std::error_code ignored;
  return std::any_of(std::begin(io::kModelConfigs), std::end(io::kModelConfigs),
                     [&](const char* name) { return fs::exists(dir / name, ignored); });
}

// refs/REVISION holds the commit fetched last; its files are links under snapshots/COMMIT. `revision` may be a commit.
std::optional<fs::path> find_snapshot(const fs::path& repository, const std::string& revision) {
  const fs::path all = repository / "snapshots";
  std::error_code ignored;
  if (const fs::path ref = repository / "refs" / revision; fs::is_regular_file(ref, ignored)) {
    std::string commit = read_file(ref, ErrorCode::usage);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) commit.pop_back();
    if (io::is_hub_name_part(commit) && is_snapshot(all / commit)) return all / commit;
  }
  if (revision != "main") {
    if (io::is_hub_name_part(revision) && is_snapshot(all / revision)) return all / revision;
    return std::nullopt;
  }
  std::vector<fs::path> snapshots;  // fetched by commit, without a ref
  for (const auto& entry : fs::directory_iterator(all, ignored))
    if (is_snapshot(entry.path())) snapshots.push_back(entry.path());
  if (snapshots.size() == 1) return snapshots[0];
  return std::nullopt;
}

ModelDownload& download_hook() {
  static ModelDownload download;
  return download;
}

// `revision`: "" or "@REVISION".
[[noreturn]] void fail_missing(const std::string& name, const std::string& revision,
                               const ModelSearchPath& search_path) {
  std::string looked;
  for (const fs::path& root : search_path.roots) looked += "\n  " + (root / name).string();
  const std::string repository = hub_name(name);
  std::vector<std::string> known = {"vader"};
  for (const Alias& alias : aliases()) known.emplace_back(alias.name);
  for (const FoundModel& found : list_models(search_path)) known.push_back(found.name);
  const std::string near = repository == name ? nearest_name(name, known) : "";
  looked += "\n  " + (search_path.hub / io::hub_cache_folder(repository)).string();
  fail(ErrorCode::usage,
       "model {} not found{}; searched the current directory and{}\nto download it: brim pull {}{}\n"
       "or copy the model into one of these directories, or give the path of its "
       "directory; `brim models list` lists the models found",
       io::quote_text(name + revision), near.empty() ? "" : " (did you mean " + near + "?)", looked, repository,
       revision);
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

namespace {

void add_files(const fs::path& dir, const std::set<std::string>& kinds, std::vector<std::string>& files) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored))
    if (entry.is_regular_file(ignored) && kinds.contains(entry.path().extension().string()))
      files.push_back(entry.path().string());
}

}  // namespace

std::vector<std::string> model_files(const fs::path& dir) {
  std::vector<std::string> files;
  add_files(dir, {".json", ".txt", ".model", ".codes", ".safetensors", ".bin"}, files);
  for (const fs::path& file : sentence_files(dir))
    if (file.has_parent_path()) files.push_back((dir / file).string());
  std::sort(files.begin(), files.end());
  for (const fs::path& other : directories_read_by(dir)) {
    const auto own = static_cast<std::ptrdiff_t>(files.size());
    add_files(other, {".json", ".txt", ".model"}, files);
    std::sort(files.begin() + own, files.end());
  }
  return files;
}

std::string model_facts(const fs::path& dir) {
  if (is_labels_encoder(dir)) return model_facts(dir.parent_path());
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

fs::path resolve_or_download(const std::string& name, const ModelSearchPath& search_path,
                             const ModelDownload& download) {
  if (name.empty()) fail(ErrorCode::usage, "`model` is empty; give a name or a directory");
  if (is_dir(name)) return name;
  std::error_code ignored, unknown;
  (void)fs::status(name, unknown);
  if (unknown == std::errc::permission_denied || unknown == std::errc::too_many_symbolic_link_levels)
    fail(ErrorCode::usage, "`model={}`: {}", io::quote_text(name), unknown.message());
  const std::string extension = fs::path(name).extension().string();
  if (fs::is_regular_file(name, ignored) && (extension == ".gguf" || extension == ".onnx"))
    fail(ErrorCode::usage,
         "`model={}`: {} files are not supported; give a Hugging Face model directory with safetensors",
         io::quote_text(name), extension == ".gguf" ? "GGUF" : "ONNX");
  if (fs::is_regular_file(name, ignored))
    fail(ErrorCode::usage, "`model={}`: is a file; give its directory", io::quote_text(name));
  const size_t at = std::min(name.find('@'), name.size());
  const std::string plain = name.substr(0, at), revision = at < name.size() ? name.substr(at + 1) : "main";
  if (!io::is_hub_name(plain) || !io::is_hub_revision(revision))
    fail(ErrorCode::usage, "`model={}`: directory not found", io::quote_text(name));
  const std::vector<std::string> names = candidates(plain);
  if (at == name.size())  // directories have no revisions
    for (const fs::path& root : search_path.roots)
      for (const std::string& candidate : names)
        if (is_dir(root / candidate)) return root / candidate;
  for (const std::string& candidate : names)
    if (const auto snapshot = find_snapshot(search_path.hub / io::hub_cache_folder(candidate), revision))
      return *snapshot;
  if (download) return download(hub_name(plain) + name.substr(at));
  fail_missing(plain, name.substr(at), search_path);
}

fs::path resolve_model(const std::string& name, const ModelSearchPath& search_path) {
  return resolve_or_download(name, search_path, download_hook());
}

void set_model_download(ModelDownload download) { download_hook() = std::move(download); }

std::vector<FoundModel> list_models(const ModelSearchPath& search_path) {
  std::vector<FoundModel> found;
  std::set<std::string> seen;
  std::error_code ignored;
  const auto is_complete = [&](const fs::path& dir) {
    return fs::exists(dir / "config.json", ignored) || fs::exists(dir / "gliner_config.json", ignored);
  };
  auto add = [&](const std::string& name, const fs::path& dir) {
    if (is_complete(dir) && seen.insert(name).second) found.push_back({name, dir});
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
      if (is_complete(dir)) continue;
      for (const fs::path& inner : sorted(dir)) add(name + "/" + inner.filename().string(), inner);  // ORG/NAME
    }
  }
  for (const fs::path& dir : sorted(search_path.hub)) {
    std::string name = dir.filename().string();
    if (!name.starts_with("models--")) continue;
    name.erase(0, 8);
    if (const size_t dashes = name.find("--"); dashes != std::string::npos) name.replace(dashes, 2, "/");
    if (const auto snapshot = find_snapshot(dir, "main")) add(name, *snapshot);
  }
  return found;
}

}  // namespace brim::hub
