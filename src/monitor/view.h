// SPDX-License-Identifier: Apache-2.0
// The terminal view as lines of text: never wider than asked, never more than asked. Where there is not room for all,
// the least important lines go first. Utilisation, memory and MFU are three bars, because they are three things.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "monitor/snapshot.h"

namespace brim::monitor {

struct ViewOptions {
  int width = 100;
  int height = 0;         // 0: as many lines as it takes
  bool color = false;     // ANSI colours
  double interval_s = 0;  // shown in the head line; 0: a single sample
};

std::vector<std::string> render(const Snapshot& snapshot, const History& history, const ViewOptions& options);

// Columns a line takes on a terminal; escape sequences take none, wide and unknown characters two.
int display_width(std::string_view line);

}  // namespace brim::monitor
