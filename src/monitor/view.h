// SPDX-License-Identifier: Apache-2.0
// Renders the terminal view as lines of text within a given width and height. If space is short, the least important
// lines are dropped first. Utilisation, memory and MFU are separate bars because they measure different things.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "monitor/snapshot.h"

namespace brim::monitor {

struct ViewOptions {
  int width = 100;
  int height = 0;         // 0: unlimited
  bool color = false;     // ANSI colours
  double interval_s = 0;  // shown in the header; 0: a single sample
};

std::vector<std::string> render(const Snapshot& snapshot, const History& history, const ViewOptions& options);

// Terminal columns of a line; escape sequences take none, wide and unknown characters two.
int display_width(std::string_view line);

}  // namespace brim::monitor
