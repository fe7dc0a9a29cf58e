// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/nanobind.h>

namespace brim::python {

void bind_runs(nanobind::module_& m);

}  // namespace brim::python
