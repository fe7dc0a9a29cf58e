// SPDX-License-Identifier: Apache-2.0
// The routes of the server, each declared in the file of its handler.
#pragma once
#include "serve/call.h"
#include "serve/durable/jobs_store.h"

namespace brim::serve {

inline constexpr auto kTei = ErrorShape::tei;

Routes operations_routes();
Routes tei_routes();
Routes token_routes();
Routes openai_routes();
Routes brim_routes();
Routes queue_routes();
Routes row_routes();
Routes admin_routes();
Routes job_routes();

// Unknown query keys of /jobs and /score; `own`: the key that only this route reads.
std::string unknown_job_keys(std::string_view query, std::string_view own);
JobRequest job_request(const Exchange& exchange);       // options of /jobs and /score; throws usage
std::optional<Reply> ner(RequestContext& context);      // also used by routes of the default model's task
std::optional<Reply> openapi(RequestContext& context);  // in openapi.cc

}  // namespace brim::serve
