// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "monitor/nvml.h"
#include "report/html.h"
#include "report/llm.h"

namespace brim::report {
namespace {

// Process names of common servers in NVML's list.
bool looks_like_server(const std::string& name) {
  for (const char* part :
       {"ollama", "llama", "vllm", "sglang", "text-generation", "tgi", "lmdeploy", "trtllm", "exllama", "koboldcpp"})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

// All processes with memory on a GPU, with ours marked. Empty if NVML has no data.
std::optional<std::vector<LlmProcess>> card_processes() {
  monitor::Nvml nvml;
  if (!nvml.ready()) return std::nullopt;
  monitor::GpuSampleOptions options;
  options.pcie_throughput = options.gpm = false;
  std::optional<std::vector<LlmProcess>> all;
  for (const monitor::GpuSample& card : nvml.sample(options)) {
    if (!card.processes) continue;
    if (!all) all.emplace();
    for (const monitor::GpuProcess& p : *card.processes) all->push_back({p.pid, p.name, p.bytes, p.pid == ::getpid()});
  }
  return all;
}

}  // namespace

std::vector<std::string> llm_prompts(const std::vector<std::string>& texts, int count) {
  std::vector<std::string> prompts;
  for (int i = 0; i < std::max(1, count); ++i) {
    const std::string text =
        texts.empty() ? "Shares rise after a strong quarter" : texts[static_cast<size_t>(i) % texts.size()];
    // Each prompt starts differently, to avoid hits in the server's prefix cache.
    prompts.push_back(fmt::format(
        "({}) Is this text positive, negative or neutral? Say which, then explain it in three sentences.\n\n{}", i + 1,
        shortened(text, 600)));
  }
  return prompts;
}

LlmRun measure_llm(const LlmClient& client, const std::vector<std::string>& prompts, int count) {
  LlmRun run;
  std::vector<double> first, seconds, rates;
  const int64_t started = now_ns();
  std::optional<Error> last;
  for (int i = 0; i < count; ++i) {
    if (i > 0 && seconds_since(started) > client.options().total_s) {
      run.skipped = count - i;
      break;
    }
    if (client.options().on_request) client.options().on_request(i + 1, count);
    try {
      const LlmCall call = client.generate(prompts[static_cast<size_t>(i) % prompts.size()]);
      first.push_back(call.first_token_s);
      seconds.push_back(call.seconds);
      if (call.tokens_per_second > 0) rates.push_back(call.tokens_per_second);
      run.calls += 1;
      run.tokens += call.tokens;
      run.cut += call.cut;
      run.counted_by_server = run.counted_by_server && call.counted_by_server;
    } catch (const Error& e) {
      if (e.code() == ErrorCode::interrupted || e.code() == ErrorCode::usage || e.code() == ErrorCode::bad_model) throw;
      run.failed += 1;
      run.last_failure = e.what();
      last = e;
    }
  }
  if (run.calls == 0 && last) throw *last;
  run.overall_tokens_per_second = static_cast<double>(run.tokens) / std::max(1e-9, seconds_since(started));
  run.first_token_s = jobs::spread_of(first);
  run.seconds = jobs::spread_of(seconds);
  run.tokens_per_second = jobs::spread_of(rates);
  return run;
}

LlmProfile profile_llm(const LlmClient& client, const std::vector<std::string>& prompts) {
  LlmProfile p;
  p.api = llm_api_name(client.api());
  p.url = client.base();
  p.model = client.options().model;
  p.max_tokens = client.options().max_tokens;
  const LlmCall warm = client.generate("Say hello.");
  p.first_request_s = warm.seconds;
  p.server_load_s = warm.server_load_seconds;
  p.alone = measure_llm(client, prompts, client.options().requests);
  p.vram = card_processes();
  if (p.vram) {
    int64_t server = 0, others = 0, other_count = 0;
    bool found = false;
    for (const auto& process : *p.vram) {
      if (process.ours || !process.bytes) continue;
      others += *process.bytes;
      ++other_count;
      if (looks_like_server(process.name)) {
        server += *process.bytes;
        found = true;
      }
    }
    if (found)
      p.server_bytes = server;
    else if (other_count == 1)
      p.server_bytes = others;
    else
      p.notes.push_back(
          other_count == 0
              ? "no other process uses GPU memory: the server runs on another machine, on the CPU, or is not visible"
              : "several unknown processes use GPU memory, so the share of the server is unknown");
  } else {
    p.notes.push_back("memory by process is not available from NVML");
  }
  if (p.alone.cut > 0) p.notes.push_back(fmt::format("{} answers were truncated", p.alone.cut));
  if (p.alone.failed > 0)
    p.notes.push_back(fmt::format("{} requests failed; the last: {}", p.alone.failed, p.alone.last_failure));
  if (p.alone.skipped > 0)
    p.notes.push_back(fmt::format("{} requests were skipped after {:g} s; increase `llm_timeout` for more",
                                  p.alone.skipped, client.options().total_s));
  if (!p.alone.counted_by_server)
    p.notes.push_back("the server does not report token counts; stream chunks were counted instead");
  return p;
}

SharingCost measure_sharing(const LlmClient& client, const std::vector<std::string>& prompts,
                            const std::function<int64_t()>& step, double seconds) {
  const std::atomic<bool>* stop = client.options().stop;
  const auto stopped = [&] { return stop != nullptr && stop->load(std::memory_order_relaxed); };
  SharingCost cost;
  int64_t items = 0;
  const int64_t started = now_ns();
  while (items == 0 || (seconds_since(started) < seconds && !stopped())) items += step();
  cost.items_alone = static_cast<double>(items) / std::max(1e-9, seconds_since(started));

  std::atomic<bool> over{false};
  std::exception_ptr problem;
  double rate = 0;
  std::thread scorer([&] {
    try {
      int64_t scored = 0;
      const int64_t began = now_ns();
      while (!over.load(std::memory_order_relaxed)) scored += step();
      rate = static_cast<double>(scored) / std::max(1e-9, seconds_since(began));
    } catch (...) {
      problem = std::current_exception();
    }
  });
  std::exception_ptr llm_problem;
  try {
    cost.together = measure_llm(client, prompts, client.options().requests);
  } catch (...) {
    llm_problem = std::current_exception();
  }
  over = true;
  scorer.join();
  if (problem) std::rethrow_exception(problem);
  if (llm_problem) std::rethrow_exception(llm_problem);
  cost.items_together = rate;
  return cost;
}

}  // namespace brim::report
