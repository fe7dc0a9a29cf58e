// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace brim::http {

const char* reason_phrase(int status);  // "Not Found" for 404; "Status" if unknown

}  // namespace brim::http
