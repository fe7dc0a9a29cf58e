// SPDX-License-Identifier: Apache-2.0
// brim measure-card DEVICE PRECISION LIMIT: child process of the first run on a GPU (plan/card_measure.h). Not for
// users and not listed in help. Prints one line and holds its context until its input ends.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>

#include "base/error.h"
#include "cli/verb.h"
#include "monitor/nvml.h"
#include "plan/card_measure.h"

namespace brim::cli {

int run_measure_card(const std::vector<std::string>& words) {
  const auto precision = words.size() == 3 ? ops::precision_from_name(words[1]) : std::nullopt;
  int64_t limit = 0;
  if (!precision || std::from_chars(words[2].data(), words[2].data() + words[2].size(), limit).ec != std::errc())
    fail(ErrorCode::usage, "measure-card: usage: measure-card DEVICE PRECISION LIMIT");
  const auto device = device::open_device(words[0], 0);
  if (device->kind() != device::DeviceKind::cuda) fail(ErrorCode::usage, "measure-card {}: not a GPU", words[0]);
  const plan::CardMeasurement rates = plan::measure_card(*device, *precision, limit);
  fmt::print("{}\n",
             measurement_line(rates, device->allocated_bytes(), monitor::Nvml().own_bytes(device->pci_bus_id())));
  std::fflush(stdout);
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}

}  // namespace brim::cli
