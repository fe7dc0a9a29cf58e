// SPDX-License-Identifier: Apache-2.0
#include "report/profile.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>

#include "base/error.h"
#include "base/units.h"
#include "io/atomic_file.h"
#include "monitor/host.h"
#include "monitor/nvml.h"
#include "report/profile_measure.h"
#include "rows/labels.h"
#include "rows/metrics.h"

namespace brim::report {
namespace {

constexpr double kMb = 1024 * 1024;
constexpr double kNearBest = 0.95;  // prefer a smaller batch if it reaches this fraction of the best speed

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return text;
}

// Scoring next to the language model, with the batch size that was best alone.
void add_sharing(const ProfileOptions& o, const LlmClient& client, const std::vector<std::string>& prompts,
                 const ProfileTexts& texts, Profile& p) {
  const auto real = std::find_if(o.models.begin(), o.models.end(), [](const auto& m) { return !m.second.empty(); });
  const auto& [name, dir] = real == o.models.end() ? o.models.front() : *real;
  const Subject subject(Scorer::open(profile_options(o, dir)));
  size_t count = 20;
  for (const auto& m : p.models)
    if (m.name == name && m.best_batch() != nullptr) count = static_cast<size_t>(m.best_batch()->batch_size);
  if (dir.empty()) count = std::max<size_t>(count, 1000);  // VADER is fast; a step must be long enough to measure
  TextRing ring(texts);
  const auto step = [&] {
    subject.score(ring.take(count));
    return static_cast<int64_t>(count);
  };
  step();
  p.llm->sharing = measure_sharing(client, prompts, step, std::max(2.0, o.seconds));
  p.llm->sharing->sentiment_model = name;
}

}  // namespace

const BatchPoint* ModelProfile::fastest_batch() const {
  const auto best = std::max_element(batches.begin(), batches.end(), [](const auto& a, const auto& b) {
    return a.items_per_second < b.items_per_second;
  });
  return best == batches.end() ? nullptr : &*best;
}

const BatchPoint* ModelProfile::best_batch() const {
  const BatchPoint* best = fastest_batch();
  if (best == nullptr) return nullptr;
  const double enough = kNearBest * best->items_per_second;
  for (const BatchPoint& b : batches)
    if (b.items_per_second >= enough && b.batch_size < best->batch_size) best = &b;
  return best;
}

std::string Profile::device_name() const {
  const bool on_card = std::any_of(models.begin(), models.end(),
                                   [](const auto& m) { return m.device_kind == device::DeviceKind::cuda; });
  return machine.gpu && (on_card || models.empty()) ? machine.gpu->name : machine.cpu;
}

std::optional<int64_t> ModelProfile::own_bytes() const {
  if (!held_bytes || device_kind == device::DeviceKind::cuda) return held_bytes;
  return std::max<int64_t>(0, *held_bytes - before_bytes);
}

std::optional<int64_t> parse_count(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  const std::string unit = lower(std::string(end, text.data() + text.size()));
  if (unit == "k")
    value *= 1e3;
  else if (unit == "m")
    value *= 1e6;
  else if (!unit.empty())
    return std::nullopt;
  if (value < 1 || value > 1e9 || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

MachineFacts machine_facts() {
  MachineFacts m;
  const monitor::HostSample host = monitor::HostSampler().sample();
  m.cpu = host.cpu_name;
  m.cores = host.cores;
  m.memory_bytes = host.memory_total_bytes.value_or(0);
  struct utsname name {};
  if (::uname(&name) == 0) m.system = fmt::format("{} {} {}", name.sysname, name.release, name.machine);
  monitor::Nvml nvml;
  m.why_no_gpu = nvml.ready() ? "NVML reports no GPU" : nvml.why();
  if (!nvml.ready()) return m;
  monitor::GpuSampleOptions options;
  options.pcie_throughput = options.gpm = options.processes = false;
  for (const monitor::GpuSample& card : nvml.sample(options)) {
    if (card.state != monitor::GpuState::ok) continue;
    const auto mb = [](const std::optional<int64_t>& bytes) {
      return bytes ? std::optional(static_cast<double>(*bytes) / kMb) : std::nullopt;
    };
    m.cards.push_back({card.name, card.driver, card.pci_bus_id, mb(card.used_bytes), mb(card.total_bytes),
                       card.utilization ? std::optional(*card.utilization * 100) : std::nullopt,
                       card.temperature_c ? std::optional(static_cast<double>(*card.temperature_c)) : std::nullopt});
  }
  if (!m.cards.empty()) {
    m.gpu = m.cards.front();
    m.why_no_gpu.clear();
  }
  return m;
}

void MachineFacts::choose_card(const std::string& pci_bus_id) {
  for (const GpuFacts& card : cards)
    if (monitor::same_card(card.pci_bus_id, pci_bus_id)) gpu = card;
}

std::vector<Agreement> agreements(const std::vector<ModelProfile>& models) {
  std::vector<Agreement> all;
  for (size_t i = 0; i < models.size(); ++i)
    for (size_t j = i + 1; j < models.size(); ++j) {
      Agreement a{models[i].name, models[j].name};
      int64_t same = 0;
      for (size_t r = 0; r < std::min(models[i].predictions.size(), models[j].predictions.size()); ++r) {
        const std::string &x = models[i].predictions[r], &y = models[j].predictions[r];
        if (x.empty() || y.empty()) continue;
        a.rows += 1;
        same += lower(x) == lower(y);
      }
      if (a.rows == 0) continue;
      a.share = static_cast<double>(same) / static_cast<double>(a.rows);
      all.push_back(a);
    }
  return all;
}

void measure_accuracy(std::vector<ModelProfile>& models, const std::vector<std::string>& truth) {
  std::vector<ModelProfile*> those;  // token models have no text labels
  size_t rows = truth.size();
  for (ModelProfile& m : models) {
    if (m.predictions.empty()) continue;
    those.push_back(&m);
    rows = std::min(rows, m.predictions.size());
  }
  std::vector<size_t> counted;
  for (size_t r = 0; r < rows; ++r)
    if (std::none_of(those.begin(), those.end(), [&](const auto* m) { return m->predictions[r].empty(); }))
      counted.push_back(r);
  for (ModelProfile* m : those) {
    // If the model lacks a label of the data, its class numbers do not match those of the data, so only names are
    // compared.
    const bool knows_all = std::all_of(counted.begin(), counted.end(),
                                       [&](size_t r) { return rows::find_label(m->labels, truth[r]).has_value(); });
    std::vector<std::string> classes = m->labels;
    std::vector<int32_t> expected, predicted;
    int64_t unknown = 0;
    for (const size_t r : counted) {
      auto want = rows::find_label(classes, truth[r]);
      if (want && !knows_all && lower(classes[static_cast<size_t>(*want)]) != lower(truth[r])) want.reset();
      if (!want) {
        want = static_cast<int32_t>(classes.size());
        classes.push_back(truth[r]);
      }
      unknown += *want >= static_cast<int32_t>(m->labels.size());
      expected.push_back(*want);
      predicted.push_back(rows::find_label(m->labels, m->predictions[r]).value_or(0));
    }
    const std::vector<std::string> missing(classes.begin() + static_cast<std::ptrdiff_t>(m->labels.size()),
                                           classes.end());
    if (unknown > 0)
      m->notes.push_back(
          fmt::format("{} of {} have a label unknown to the model ({}; known: {}): {}", format_count(unknown),
                      format_count(static_cast<int64_t>(counted.size()), "row"), fmt::join(missing, ", "),
                      fmt::join(m->labels, ", "),
                      unknown < static_cast<int64_t>(counted.size()) ? "they count as wrong answers" : "no accuracy"));
    if (unknown == static_cast<int64_t>(counted.size())) continue;
    const rows::ClassificationMetrics metrics =
        rows::classification_metrics(expected, predicted, static_cast<int32_t>(classes.size()));
    m->accuracy = metrics.accuracy;
    m->macro_f1 = metrics.macro_f1;
    m->labelled_rows = static_cast<int64_t>(expected.size());
    m->right.clear();
    for (size_t i = 0; i < expected.size(); ++i) m->right.push_back(expected[i] == predicted[i]);
  }
}

Profile run_profile(const ProfileOptions& o, const std::string& mode, const ProfileTexts& texts) {
  Profile p;
  const std::time_t now = std::time(nullptr);
  p.generated_at = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
  p.stamp = fmt::format("{:%Y%m%d_%H%M%S}", fmt::localtime(now));
  p.mode = mode;
  p.machine = machine_facts();
  p.texts_source = texts.source;
  p.texts = static_cast<int64_t>(texts.texts.size());

  double done = 0, total = 0;
  std::string running;
  std::optional<LlmClient> client;
  if (o.llm) {  // first, so that a missing server is reported immediately
    LlmOptions llm = *o.llm;
    llm.on_request = [&](int request, int count) {
      if (o.progress) o.progress(done - 1, total, fmt::format("{}, request {} of {}", running, request, count));
    };
    try {
      client.emplace(llm);
    } catch (const NoLlmServer& e) {
      if (!llm.model.empty() || o.models.empty()) throw;
      p.notes.push_back(fmt::format("no language model was measured: {}", e.what()));
    }
  }
  total = static_cast<double>(steps_per_model(o) * static_cast<int64_t>(o.models.size()) + (client ? 1 : 0) +
                              (client && !o.models.empty() ? 1 : 0));
  const auto report = [&](const std::string& what) {
    throw_if_stopped(o.stop);
    running = what;
    if (o.progress) o.progress(done, total, what);
    done += 1;
  };
  monitor::Nvml nvml;
  for (const auto& [name, dir] : o.models)
    p.models.push_back(measure_model(o, name, dir, texts, nvml,
                                     [&, &shown = name](const std::string& what) { report(shown + ": " + what); }));
  for (const ModelProfile& m : p.models) p.machine.choose_card(m.pci_bus_id);
  measure_accuracy(p.models, texts.labels);
  p.agreement = agreements(p.models);
  if (client) {
    const auto prompts = llm_prompts(texts.texts, client->options().requests);
    report(client->options().model + ": alone");
    p.llm = profile_llm(*client, prompts);
    if (!o.models.empty()) {
      report(client->options().model + ": together with scoring");
      add_sharing(o, *client, prompts, texts, p);
    }
  }
  p.recommendations = recommendations(p);
  return p;
}

ProfileFiles write_profile(const Profile& p, const std::filesystem::path& dir) {
  std::error_code ec;
  std::filesystem::create_directories(dir, ec);
  if (!std::filesystem::is_directory(dir))
    fail(ErrorCode::cannot_write, "`output_dir={}`: cannot be created ({})", dir.string(), ec.message());
  ProfileFiles files;
  for (int n = 1;; ++n) {
    const std::string stem = n == 1 ? "gpu_profile_" + p.stamp : fmt::format("gpu_profile_{}_{}", p.stamp, n);
    files = {dir / (stem + ".json"), dir / (stem + ".html")};
    if (!std::filesystem::exists(files.json) && !std::filesystem::exists(files.html)) break;
  }
  io::write_file_atomically(files.json, profile_json(p));
  io::write_file_atomically(files.html, profile_html(p));
  return files;
}

}  // namespace brim::report
