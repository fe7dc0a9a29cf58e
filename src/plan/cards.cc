// SPDX-License-Identifier: Apache-2.0
// Table of GPUs from data sheets, for planning without the GPU, and matching of user and driver names to it. Does not
// query devices.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/units.h"
#include "plan/device_profile.h"

namespace brim::plan {
namespace {

constexpr double kAttained = 0.78;      // fraction of the data sheet's dense rate reached by a large product
constexpr double kInt8Attained = 0.39;  // the same for the int8 kernel: the four products of RoBERTa-base on an H200
constexpr double kCopyAttained = 0.85;  // fraction of the data sheet's bandwidth reached by a copy
constexpr int kOldestRunnable = 75;     // sm_75: the first with the matrix instructions used by the kernels
constexpr const char* kLaptop = "-laptop";

// Data sheet values: dense TFLOP/s, and GB/s of memory and of the host bus. Half precision accumulates in fp32, which
// GeForce cards do at half their headline rate. int8 is that of mma.sync: the data sheet's, except on Hopper (measured
// on an H200). Memory is the amount offered by the driver.
struct Sheet {
  const char* name;
  int capability;
  int64_t mib;
  double fp32, tf32, half, fp8, int8, gb_per_s, host_gb_per_s;
};

// GeForce cards since Ampere: all rates have the same proportions.
constexpr Sheet geforce(const char* name, int capability, int64_t mib, double fp32, double gb_per_s,
                        double host_gb_per_s) {
  return {name,     capability, mib,          fp32, fp32, 2 * fp32, capability >= 89 ? 4 * fp32 : 0,
          8 * fp32, gb_per_s,   host_gb_per_s};
}

constexpr double kPcie3 = 15.8, kPcie4x8 = 15.8, kPcie4 = 31.5, kPcie5x8 = 31.5, kPcie5 = 63;  // sixteen or eight lanes

// Laptop rates are for the highest clock allowed by the manufacturer.
constexpr Sheet kSheets[] = {
    {"k80", 37, 11441, 4.37, 0, 0, 0, 0, 240, kPcie3},  // one of its two GPUs
    {"p100", 60, 16280, 9.3, 0, 18.7, 0, 0, 732, kPcie3},
    {"v100", 70, 16384, 15.7, 0, 125, 0, 0, 900, kPcie3},
    {"v100-32gb", 70, 32510, 15.7, 0, 125, 0, 0, 900, kPcie3},
    {"t4", 75, 15360, 8.1, 0, 65, 0, 130, 320, kPcie3},
    {"rtx2060", 75, 6144, 6.5, 0, 25.8, 0, 103, 336, kPcie3},
    {"rtx2070", 75, 8192, 7.5, 0, 29.9, 0, 119, 448, kPcie3},
    {"rtx2080", 75, 8192, 10.1, 0, 40.3, 0, 161, 448, kPcie3},
    {"rtx2080ti", 75, 11264, 13.4, 0, 53.8, 0, 215, 616, kPcie3},
    geforce("rtx3050-laptop", 86, 4096, 7.1, 192, kPcie4x8),
    {"rtx3050-6gb", 86, 6144, 6.8, 6.8, 13.5, 0, 54, 168, kPcie4x8},
    geforce("rtx3050-8gb", 86, 8192, 9.1, 224, kPcie4x8),
    geforce("rtx3060-laptop", 86, 6144, 13.1, 336, kPcie4),
    geforce("rtx3060-8gb", 86, 8192, 12.7, 240, kPcie4),
    {"rtx3060", 86, 12288, 12.7, 12.7, 25.5, 0, 102, 360, kPcie4},
    geforce("rtx3060ti", 86, 8192, 16.2, 448, kPcie4),
    geforce("rtx3070-laptop", 86, 8192, 16.6, 448, kPcie4),
    geforce("rtx3070", 86, 8192, 20.3, 448, kPcie4),
    geforce("rtx3070ti", 86, 8192, 21.7, 608, kPcie4),
    geforce("rtx3080", 86, 10240, 29.8, 760, kPcie4),
    geforce("rtx3080-12gb", 86, 12288, 30.6, 912, kPcie4),
    geforce("rtx3080ti", 86, 12288, 34.1, 912, kPcie4),
    geforce("rtx3090", 86, 24576, 35.6, 936, kPcie4),
    geforce("rtx3090ti", 86, 24564, 40.0, 1008, kPcie4),
    geforce("rtx4050-laptop", 89, 6141, 12.1, 192, kPcie4x8),
    geforce("rtx4060-laptop", 89, 8188, 14.6, 256, kPcie4x8),
    geforce("rtx4060", 89, 8188, 15.1, 272, kPcie4x8),
    geforce("rtx4060ti-8gb", 89, 8188, 22.1, 288, kPcie4x8),
    geforce("rtx4060ti-16gb", 89, 16380, 22.1, 288, kPcie4x8),
    geforce("rtx4070-laptop", 89, 8188, 20.0, 256, kPcie4x8),
    geforce("rtx4070", 89, 12282, 29.1, 504, kPcie4),
    geforce("rtx4070super", 89, 12282, 35.5, 504, kPcie4),
    geforce("rtx4070ti", 89, 12282, 40.1, 504, kPcie4),
    geforce("rtx4070tisuper", 89, 16376, 44.1, 672, kPcie4),
    geforce("rtx4080-laptop", 89, 12282, 33.9, 432, kPcie4),
    geforce("rtx4080", 89, 16376, 48.7, 717, kPcie4),
    geforce("rtx4080super", 89, 16376, 52.2, 736, kPcie4),
    geforce("rtx4090-laptop", 89, 16376, 39.7, 576, kPcie4),
    geforce("rtx4090", 89, 24564, 82.6, 1008, kPcie4),
    geforce("rtx5060", 120, 8151, 19.2, 448, kPcie5x8),
    geforce("rtx5060ti-8gb", 120, 8151, 23.7, 448, kPcie5x8),
    geforce("rtx5060ti-16gb", 120, 16311, 23.7, 448, kPcie5x8),
    geforce("rtx5070", 120, 12227, 30.9, 672, kPcie5),
    geforce("rtx5070ti", 120, 16303, 43.9, 896, kPcie5),
    geforce("rtx5080", 120, 16303, 56.3, 960, kPcie5),
    geforce("rtx5090", 120, 32607, 104.8, 1792, kPcie5),
    {"l4", 89, 23034, 30.3, 60, 121, 242, 242, 300, kPcie4},
    {"l40s", 89, 46068, 91.6, 183, 362, 733, 733, 864, kPcie4},
    {"a10", 86, 23028, 31.2, 62.5, 125, 0, 250, 600, kPcie4},
    {"a30", 80, 24576, 10.3, 82, 165, 0, 330, 933, kPcie4},
    {"a40", 86, 46068, 37.4, 74.8, 149.7, 0, 299.3, 696, kPcie4},
    {"a6000", 86, 49140, 38.7, 77.4, 154.8, 0, 309.7, 768, kPcie4},
    {"a100-40gb", 80, 40960, 19.5, 156, 312, 0, 624, 1555, kPcie4},
    {"a100-80gb", 80, 81920, 19.5, 156, 312, 0, 624, 2039, kPcie4},
    {"h100", 90, 81559, 67, 494.7, 989.4, 1978.9, 1294, 3350, kPcie5},
    {"h200", 90, 143771, 67, 494.7, 989.4, 1978.9, 1294, 4800, kPcie5},
};

DeviceProfile profile_of(const Sheet& s) {
  DeviceProfile p;
  p.name = s.name;
  p.kind = device::DeviceKind::cuda;
  p.compute_capability = s.capability;
  p.total_bytes = s.mib << 20;
  p.tflops_fp32 = s.fp32 * kAttained;
  p.tflops_tf32 = s.tf32 * kAttained;
  p.tflops_half = s.half * kAttained;
  p.tflops_fp8 = s.fp8 * kAttained;
  p.tops_int8 = s.int8 * kInt8Attained;
  p.bandwidth = s.gb_per_s * 1e9 * kCopyAttained;
  p.host_bandwidth = s.host_gb_per_s * 1e9 * kCopyAttained;
  p.context_bytes = estimated_context_bytes(s.capability);
  p.bf16 = s.capability >= 80;
  p.runnable = s.capability >= kOldestRunnable;
  return p;
}

std::vector<DeviceProfile> make_cards() {
  std::vector<DeviceProfile> cards;
  for (const Sheet& sheet : kSheets) cards.push_back(profile_of(sheet));
  DeviceProfile& h200 = cards.back();
  h200.tflops_half = 774;
  h200.tflops_fp8 = 1403;
  h200.bandwidth = 4.1e12;
  // Driver 580.159.04, CUDA 13.0: runs of 1.3 to 20 GiB held 541 to 542 MiB beyond their allocations
  // (docs/archive/measurements.md).
  h200.context_bytes = int64_t{544} << 20;
  std::stable_sort(cards.begin(), cards.end(),
                   [](const DeviceProfile& a, const DeviceProfile& b) { return a.total_bytes < b.total_bytes; });
  return cards;
}

// Parsed name: "NVIDIA GeForce RTX 4060 Laptop GPU" is an rtx4060 for laptops, "A100-SXM4-80GB" an a100 with 80 GB.
struct CardName {
  std::string model;
  bool laptop = false;
  int64_t gigabytes = 0;  // 0 if not given
};

std::optional<int64_t> gigabytes_of(const std::string& word) {
  const size_t digits = word.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string::npos || digits > 4) return std::nullopt;
  const std::string unit = word.substr(digits);
  if (unit != "gb" && unit != "gib" && unit != "g") return std::nullopt;
  return std::stoll(word.substr(0, digits));
}

CardName parse_card_name(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ' ' || c == '-' || c == '_')
      words.emplace_back();
    else
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  CardName name;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i];
    if (i + 1 < words.size() && gigabytes_of(word + words[i + 1])) word += words[++i];  // "16 GB"
    for (const char* maker : {"nvidia", "geforce", "tesla"})
      if (word.starts_with(maker)) word.erase(0, std::string_view(maker).size());
    for (const char* portable : {"laptop", "mobile", "notebook"})
      if (const size_t at = word.find(portable); at != std::string::npos) {
        name.laptop = true;
        word.erase(at, std::string_view(portable).size());
      }
    const bool form = word == "gpu" || word == "pcie" || word == "nvl" || word.starts_with("sxm") ||
                      word.starts_with("hbm");  // form factor
    if (const auto size = gigabytes_of(word))
      name.gigabytes = *size;
    else if (!form)
      name.model += word;
  }
  if (name.model == "rtxa6000") name.model = "a6000";
  if (name.model.size() >= 4 && std::isdigit(static_cast<unsigned char>(name.model[0])) != 0)
    name.model = "rtx" + name.model;  // "4060 Ti"
  return name;
}

CardName name_of(const DeviceProfile& card) {
  CardName name = parse_card_name(card.name);
  name.gigabytes = (card.total_bytes + (int64_t{1} << 29)) >> 30;
  return name;
}

// Drivers reserve up to a fifteenth of the nominal memory.
bool has_gigabytes(const DeviceProfile& card, int64_t gigabytes) {
  return std::abs(static_cast<double>(card.total_bytes) / static_cast<double>(gigabytes << 30) - 1) < 0.08;
}

// Cards with that name: desktop before laptop, then by size.
std::vector<const DeviceProfile*> cards_named(const CardName& wanted) {
  std::vector<const DeviceProfile*> found;
  for (const bool laptop : {false, true}) {
    if (wanted.laptop && !laptop) continue;
    for (const DeviceProfile& card : known_cards()) {
      const CardName name = name_of(card);
      if (name.model == wanted.model && name.laptop == laptop) found.push_back(&card);
    }
  }
  return found;
}

std::string size_text(const DeviceProfile& card) {
  return fmt::format("{} ({})", card.name, format_bytes(card.total_bytes));
}

}  // namespace

int64_t estimated_context_bytes(int compute_capability) {
  const int64_t mib = compute_capability >= 90   ? 520
                      : compute_capability >= 89 ? 340
                      : compute_capability == 80 ? 420
                      : compute_capability >= 80 ? 280
                                                 : 240;
  return mib << 20;
}

const std::vector<DeviceProfile>& known_cards() {
  static const std::vector<DeviceProfile> cards = make_cards();
  return cards;
}

const DeviceProfile* find_card(const std::string& device, int64_t total_bytes) {
  const CardName wanted = parse_card_name(device);
  const DeviceProfile* found = nullptr;
  for (const DeviceProfile* card : cards_named(wanted)) {
    if (name_of(*card).laptop != wanted.laptop) continue;
    const auto off = [&](const DeviceProfile& c) { return std::abs(c.total_bytes - total_bytes); };
    if (found == nullptr || off(*card) < off(*found)) found = card;
  }
  return found;
}

DeviceProfile card_profile(const std::string& requested, std::vector<std::string>* notes) {
  if (requested == "cpu") {
    const auto device = device::open_cpu_device(0);
    return local_profile(*device);
  }
  const CardName wanted = parse_card_name(requested);
  std::vector<const DeviceProfile*> found = cards_named(wanted);
  std::vector<std::string> sizes;
  for (const DeviceProfile* card : found) sizes.push_back(size_text(*card));
  if (wanted.gigabytes > 0)
    std::erase_if(found, [&](const DeviceProfile* card) { return !has_gigabytes(*card, wanted.gigabytes); });
  if (found.empty() && !sizes.empty())
    fail(ErrorCode::usage, Remedy{fmt::format("describe another GPU with `vram={}GB`", wanted.gigabytes)},
         "`device={}`: unknown memory size; known sizes: {}", requested, fmt::join(sizes, ", "));
  if (found.empty()) {
    std::vector<std::string> names = {"cpu", "all"};
    for (const DeviceProfile& card : known_cards()) names.push_back(card.name);
    const std::string near = nearest_name(wanted.model + (wanted.laptop ? kLaptop : ""), names);
    fail(ErrorCode::usage, Remedy{"describe another GPU with `vram`"},
         "`device={}`: unknown device{}; known devices: {}", requested,
         near.empty() ? "" : fmt::format(" (did you mean {}?)", near), fmt::join(names, ", "));
  }
  const auto exact = std::find_if(found.begin(), found.end(), [&](const DeviceProfile* card) {
    return card->name == wanted.model + (wanted.laptop ? kLaptop : "");
  });
  const DeviceProfile& card = exact != found.end() ? **exact : *found.front();
  if (notes != nullptr && found.size() > 1 && exact == found.end())
    notes->push_back(
        fmt::format("{} has several memory sizes ({}); planning for {}", requested, fmt::join(sizes, ", "), card.name));
  if (notes != nullptr && card.name.ends_with(kLaptop))
    notes->push_back(
        fmt::format("{}: speed is for the highest clock; laptops with a lower power limit are slower", card.name));
  return card;
}

DeviceProfile custom_card(int64_t total_bytes, double tflops, double bandwidth, std::vector<std::string>* notes) {
  if (total_bytes <= 0) fail(ErrorCode::usage, "`vram`: must be above zero");
  if (!(tflops >= 0)) fail(ErrorCode::usage, "`tflops={}`: must be above zero", tflops);
  if (!(bandwidth >= 0)) fail(ErrorCode::usage, "`bandwidth={}`: must be above zero", bandwidth * 1e-9);
  // Use the card nearest in memory, and the slowest of several: bytes are exact either way, and the speed is
  // conservative.
  const auto distance = [&](const DeviceProfile& c) {
    return std::tuple(!c.bf16, std::abs(c.total_bytes - total_bytes) >> 28, c.tflops_half);
  };
  DeviceProfile p =
      *std::min_element(known_cards().begin(), known_cards().end(),
                        [&](const DeviceProfile& a, const DeviceProfile& b) { return distance(a) < distance(b); });
  if (notes != nullptr && (tflops == 0 || bandwidth == 0))
    notes->push_back(fmt::format("{} taken from {}, the GPU with the nearest memory size; set {} to override",
                                 tflops > 0      ? "memory bandwidth"
                                 : bandwidth > 0 ? "arithmetic"
                                                 : "speed",
                                 p.name,
                                 tflops > 0      ? "`bandwidth`"
                                 : bandwidth > 0 ? "`tflops`"
                                                 : "`tflops` and `bandwidth`"));
  p.name = "custom";
  p.total_bytes = total_bytes;
  p.context_bytes = estimated_context_bytes(p.compute_capability);
  p.measured = p.context_measured = false;
  if (tflops > 0) {
    p.tops_int8 *= tflops / p.tflops_half;
    p.tflops_half = tflops;
    p.tflops_tf32 = tflops / 2;
    p.tflops_fp32 = tflops / 4;
    p.tflops_fp8 = 0;
  }
  if (bandwidth > 0) p.bandwidth = bandwidth;
  return p;
}

}  // namespace brim::plan
