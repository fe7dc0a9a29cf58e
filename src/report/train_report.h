// SPDX-License-Identifier: Apache-2.0
// report.html of a training run: curves of loss, metrics, learning rate, throughput, memory and the card, the plan by
// tag, data and settings. Made from the record that train() hands out, so it can be drawn while a run goes on.
#pragma once
#include <filesystem>
#include <string>

namespace brim::report {

std::string train_report_html(const std::string& record_json);  // throws bad_data where it is no record
void write_train_report(const std::filesystem::path& path, const std::string& record_json);

}  // namespace brim::report
