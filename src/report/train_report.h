// SPDX-License-Identifier: Apache-2.0
// report.html of a training run: curves of loss, metrics, learning rate, throughput, memory and GPU, the plan by tag,
// data and settings. Uses the record provided by train(), so it can be rendered during a run.
#pragma once
#include <filesystem>
#include <string>

namespace brim::report {

std::string train_report_html(const std::string& record_json);  // throws bad_data for an invalid record
void write_train_report(const std::filesystem::path& path, const std::string& record_json);

}  // namespace brim::report
