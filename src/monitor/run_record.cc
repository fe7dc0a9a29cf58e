// SPDX-License-Identifier: Apache-2.0
#include "monitor/run_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "device/device.h"

namespace brim::monitor {
namespace {

using RecordJson = nlohmann::ordered_json;

// The key of a member in JSON: its name, except for one that had another name in older traces.
const char* key_of(const char* member) { return std::string_view(member) == "token_placement" ? "token_home" : member; }

// Lists the fields of a record once, for writing and reading.
#define BRIM_VISIT_FIELD(name) visit(key_of(#name), record.name);
#define BRIM_FIELDS_OF(Type, ...)                                              \
  template <>                                                                  \
  struct Fields<Type> {                                                        \
    template <class Record, class Visit>                                       \
    static void list(Record& record, Visit&& visit) {                          \
      NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(BRIM_VISIT_FIELD, __VA_ARGS__)) \
    }                                                                          \
  };
template <class T>
struct Fields;

BRIM_FIELDS_OF(RunCounters, rows, bad_rows, truncated_rows, tokens, batches, sum_squares, seconds, compute_seconds,
               wait_input_seconds, sink_seconds, read_seconds, room_seconds, tokenize_seconds, host_seconds, tokenizers,
               read_cpu_seconds, tokenize_cpu_seconds, sink_cpu_seconds, cpu_seconds, other_cpu_seconds,
               run_delay_seconds, major_faults, repeated_rows, repeated_bytes)
BRIM_FIELDS_OF(CardRecord, sm_clock_mhz, max_sm_clock_mhz, unhindered_clock_mhz, power_w, power_limit_w, throttle,
               other_bytes, other_processes)
BRIM_FIELDS_OF(TrainingRecord, steps, recompute, optimizer, token_placement, recompute_asked, moments_on_host, resumed,
               free_recompute, free_optimizer, free_moments_on_host, wide_batch_tokens, wide_tokens_per_second,
               free_planned_bytes, teacher_seconds, lanes, waves, free_lanes)
BRIM_FIELDS_OF(RunRecord, verb, model, device, precision, precision_reason, pci_bus_id, on_card, device_index, inputs,
               output, threads, cores, machine_cores, token_budget, max_length, limit_bytes, planned_bytes,
               staging_depth, plan_tokens_per_second, free_token_budget, free_limit_bytes, free_tokens_per_second,
               load_seconds, others, mfu, device_busy, mfu_of_data_sheet, peak_bytes, held_back_by, pid, start_unix_ns,
               updated_unix_ns, step, total_steps, loss, done, seconds_left, stages, stats, card, training)
#undef BRIM_FIELDS_OF
#undef BRIM_VISIT_FIELD

template <class T>
concept HasFields = requires {
  sizeof(Fields<T>);
};
template <class T>
concept IsOptional = requires(T& value) {
  value.has_value();
};

template <class T>
RecordJson field_json(const T& value) {
  if constexpr (IsOptional<T>) {
    return value ? field_json(*value) : RecordJson(nullptr);
  } else if constexpr (HasFields<T>) {
    RecordJson j = RecordJson::object();
    Fields<T>::list(value, [&](const char* name, const auto& field) { j[name] = field_json(field); });
    return j;
  } else {
    return value;
  }
}

template <class T>
void read_field(const RecordJson& j, T& value) {
  if constexpr (IsOptional<T>) {
    value.reset();
    if (j.is_null()) return;
    typename T::value_type read{};
    read_field(j, read);
    if constexpr (std::is_arithmetic_v<typename T::value_type>)
      if (read < 0) return;  // unknown in traces of older versions
    value = std::move(read);
  } else if constexpr (HasFields<T>) {
    if (!j.is_object()) fail(ErrorCode::bad_data, "invalid record of a run: not an object");
    Fields<T>::list(value, [&](const char* name, auto& field) {
      if (const auto found = j.find(name); found != j.end()) read_field(*found, field);
    });
  } else {
    j.get_to(value);
  }
}

}  // namespace

void RunRecord::set_device(const device::Device& on) {
  device = on.name();
  pci_bus_id = on.pci_bus_id();
  on_card = on.kind() == device::DeviceKind::cuda;
  device_index = on.index();
}

std::optional<double> RunRecord::share_done() const {
  if (done || !step || total_steps.value_or(0) <= 0) return done;
  return static_cast<double>(*step) / static_cast<double>(*total_steps);
}

std::string RunRecord::device_title() const {
  return on_card ? fmt::format("cuda:{} {}", device_index, device) : device;
}

std::string to_json(const RunRecord& record) {
  RecordJson j = {{"schema_version", 1}};
  Fields<RunRecord>::list(record, [&](const char* name, const auto& field) { j[name] = field_json(field); });
  return j.dump(-1, ' ', false, RecordJson::error_handler_t::replace);  // paths may contain any bytes
}

RunRecord record_from_json(const std::string& text) {
  try {
    const RecordJson j = RecordJson::parse(text);
    if (j.at("schema_version") != 1)
      fail(ErrorCode::bad_data, "unsupported schema version {}", j.at("schema_version").dump());
    RunRecord record;
    j.at("verb").get_to(record.verb);  // every version wrote these two
    read_field(j.at("stats"), record.stats);
    read_field(j, record);
    return record;
  } catch (const RecordJson::exception& e) {
    fail(ErrorCode::bad_data, "invalid record of a run: {}", e.what());
  }
}

}  // namespace brim::monitor
