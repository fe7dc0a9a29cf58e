// SPDX-License-Identifier: Apache-2.0
// Option types of include/brim/options.h: their text form, and conversion to the types of the lower folders, which may
// not depend on the public API.
#pragma once
#include <string_view>

#include "brim/options.h"
#include "device/device.h"
#include "plan/resolve.h"

namespace brim::engine {

// Parse the text of a setting; throw BadValue.
Device read_device(std::string_view text);
Precision read_precision(std::string_view text);
MemoryLimit read_memory_limit(std::string_view text);
LeaveFree read_leave_free(std::string_view text);

device::DeviceChoice device_choice(const Device& device);
plan::PrecisionRequest precision_request(const Precision& precision);
plan::MemoryLimit memory_limit(const MemoryLimit& limit, const LeaveFree& leave_free);

}  // namespace brim::engine
