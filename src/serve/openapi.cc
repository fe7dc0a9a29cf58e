// SPDX-License-Identifier: Apache-2.0
// GET /openapi.json: the routes for programs that read such descriptions. A test compares it with the table of routes.
#include "serve/openapi.inc"  // made by CMake: kOpenApi

#include <nlohmann/json.hpp>

#include "serve/service.h"

namespace brim::serve {

void Service::openapi(Call& call) {
  static const std::string document = [] {
    auto all = nlohmann::ordered_json::parse(kOpenApi);
    all["info"]["version"] = version();
    return all.dump();
  }();
  answer(call, document);
}

}  // namespace brim::serve
